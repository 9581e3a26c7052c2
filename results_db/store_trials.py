"""Find trials by their failures, and delete them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update

from results_db import convert
from results_db.models import (
    Device,
    Kernel,
    Measurement,
    Run,
    Task,
    Trial,
)
from results_db.models import Workload as WorkloadRow
from results_db.query import UNFINISHED, split_values
from results_db.stored_records import FoundTrial, Source, Stage, TrialFilter
from results_db.transactions import Transactions
from search_spaces.records import Status, Workload


class TrialStore(Transactions):
    """Trials across tasks and runs."""

    def find_trials(self, which: TrialFilter) -> list[FoundTrial]:
        """The matching trials, with all copies of them and all trials they were copied from.

        They are in the order of storage.
        """

        def find(connection: Connection) -> list[FoundTrial]:
            rows = connection.execute(_matching(which)).all()
            matching = [row for row in rows if _fits(convert.workload_of(row.dims, row.key), which)]
            related = _find_related(connection, {row.attempt_id for row in matching})
            copies = [
                row
                for part in split_values(sorted(related))
                for row in connection.execute(_FOUND.where(Trial.attempt_id.in_(part)))
            ]
            ordered = sorted([*matching, *copies], key=lambda row: int(row.id))
            return [_record(row) for row in ordered]

        return self._read(find)

    def list_trials(self, which: TrialFilter) -> list[FoundTrial]:
        """The matching trials alone, by task and number."""

        def find(connection: Connection) -> list[FoundTrial]:
            rows = connection.execute(_matching(which).order_by(Trial.task_id, Trial.number))
            return [trial for trial in map(_record, rows) if _fits(trial.workload, which)]

        return self._read(find)

    def find_prunable(self, runs: Sequence[int]) -> list[FoundTrial]:
        """The trials of these runs, without those whose results another run has taken over."""
        copied = select(Trial.copied_from).join(Task, Trial.task_id == Task.id)
        taken = copied.where(Task.run_id.not_in(runs), Trial.copied_from != "")
        query = _FOUND.where(Task.run_id.in_(runs), Trial.attempt_id.not_in(taken))
        return self._read(lambda each: [_record(row) for row in each.execute(query)])

    def list_kernels(self) -> list[str]:
        """The names of all kernels that have tasks."""
        query = select(Kernel.name).distinct().order_by(Kernel.name)
        return self._read(lambda each: list(each.scalars(query)))

    def forget(self, trials: Sequence[FoundTrial]) -> int:
        """Delete trials with their measurements; returns the number of deleted trials.

        Their tasks return to the stage `search` where the run is unfinished. Each task is one
        transaction. Raises `LeaseLostError` for trials of a run that a driver holds.
        """
        by_task: dict[int, list[str]] = defaultdict(list)
        for trial in trials:
            by_task[trial.task_id].append(trial.attempt_id)
        deleted = 0
        for task_id, attempts in by_task.items():
            deleted += self._write_task(
                task_id, partial(_forget, task_id=task_id, attempts=attempts)
            )
        return deleted


#: Columns of a trial that its record has as they are.
_ALIKE = (
    "status",
    "source",
    "message",
    "number",
    "strategy",
    "registers",
    "spill_bytes",
    "shared_bytes",
)
_FOUND: Any = (
    select(
        Trial.id,
        Trial.attempt_id,
        Trial.task_id,
        Trial.config,
        *(getattr(Trial, name) for name in _ALIKE),
        Measurement.median_us,
        Measurement.verified_by,
        Task.run_id,
        Kernel.name.label("kernel"),
        Device.name.label("device"),
        WorkloadRow.dims,
        WorkloadRow.key,
    )
    .join(Task, Trial.task_id == Task.id)
    .join(Kernel, Task.kernel_id == Kernel.id)
    .join(Device, Task.device_id == Device.id)
    .join(WorkloadRow, Task.workload_id == WorkloadRow.id)
    .outerjoin(Measurement, Measurement.trial_id == Trial.id)
)


def _matching(which: TrialFilter) -> Any:
    query = _FOUND.where(Trial.status.in_([*map(str, which.statuses)]))
    if which.run_id is not None:
        query = query.where(Task.run_id == which.run_id)
    if which.kernel is not None:
        query = query.where(Kernel.name == which.kernel)
    if which.text:
        text = which.text.lower()
        contained = (func.lower(part).contains(text, autoescape=True) for part in _TEXTS)
        query = query.where(or_(*contained))
    return query


_TEXTS = (Trial.message, Trial.detail)


def _fits(workload: Workload, which: TrialFilter) -> bool:
    """Whether a workload has all dims of the filter."""
    return set(which.words) <= set(workload.key.split())


def _find_related(connection: Connection, attempts: set[str]) -> set[str]:
    """All copies and sources of these attempts, directly or through other copies."""
    known, new = set(attempts), set(attempts)
    while new:
        found: set[str] = set()
        for part in split_values(sorted(new)):
            found |= set(
                connection.scalars(select(Trial.attempt_id).where(Trial.copied_from.in_(part)))
            )
            sources = select(Trial.copied_from).where(
                Trial.attempt_id.in_(part), Trial.copied_from != ""
            )
            found |= set(connection.scalars(sources))
        new = found - known
        known |= new
    return known - attempts


def _forget(connection: Connection, task_id: int, attempts: Sequence[str]) -> int:
    deleted = 0
    for part in split_values(attempts):
        ids = list(
            connection.scalars(
                select(Trial.id).where(Trial.task_id == task_id, Trial.attempt_id.in_(part))
            )
        )
        connection.execute(delete(Measurement).where(Measurement.trial_id.in_(ids)))
        deleted += connection.execute(delete(Trial).where(Trial.id.in_(ids))).rowcount
    _set_best(connection, task_id)
    _reopen(connection, task_id)
    return deleted


def _set_best(connection: Connection, task_id: int) -> None:
    """Set the best time of a task to that of the trials that are left."""
    left = select(func.min(Measurement.median_us)).join(Trial, Measurement.trial_id == Trial.id)
    best = left.where(Trial.task_id == task_id, Trial.status == Status.CORRECT)
    connection.execute(
        update(Task).where(Task.id == task_id).values(best_us=best.scalar_subquery())
    )


def _reopen(connection: Connection, task_id: int) -> None:
    """Return a task of an unfinished run to its search."""
    unfinished = select(Run.id).where(Run.status.in_(UNFINISHED))
    connection.execute(
        update(Task)
        .where(Task.id == task_id, Task.run_id.in_(unfinished))
        .values(stage=Stage.SEARCH)
    )


def _record(row: Any) -> FoundTrial:
    values = {name: getattr(row, name) for name in _ALIKE}
    words = {"status": Status(row.status), "source": Source(row.source)}
    return FoundTrial(
        attempt_id=row.attempt_id,
        run_id=row.run_id,
        task_id=row.task_id,
        kernel=row.kernel,
        workload=convert.workload_of(row.dims, row.key),
        device=row.device,
        config=row.config,
        median_us=row.median_us,
        verified_by=row.verified_by,
        **{**values, **words},
    )
