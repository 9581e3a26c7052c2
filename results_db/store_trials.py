"""Trials in the store: read for a task, found by their failures, deleted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, delete, func, or_, select, update

from results_db.convert import record_of, reuse_key, trial_record, workload_of, workload_values
from results_db.query import TRIALS, UNFINISHED, split_values
from results_db.stored_records import FoundTrial, Source, Stage, TaskKey, TrialFilter, TrialRecord
from results_db.tables import (
    COPIED,
    DEVICE,
    KERNEL,
    MEASURED,
    MEASUREMENT,
    RUN,
    TASK,
    TASKS,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
    stored_fields,
)
from results_db.transactions import Transactions
from search_spaces.records import Status, Workload


class TrialStore(Transactions):
    """Trials of a task, and across tasks and runs."""

    def trials(self, task_id: int, number: int | None = None) -> list[TrialRecord]:
        """The trials of a task by number, or the one with a number, with their raw samples."""
        query = TRIALS.where(TRIAL.c.task_id == task_id).order_by(TRIAL.c.number)
        if number is not None:
            query = query.where(TRIAL.c.number == number)
        return self._read_all(query, trial_record)

    def known_trials(self, key: TaskKey, *, exclude_task: int | None = None) -> list[TrialRecord]:
        """Results of any run for the same code, workload, device, toolchain and protocol.

        Both hashes of the kernel's identity must be equal; the space may differ. Returns the newest
        trial of each config that is not copied from another run, oldest first.
        """
        newest = (
            select(func.max(TRIAL.c.id))
            .select_from(TRIAL.join(TASK))
            .where(TASK.c.reuse_key == reuse_key(key), MEASURED)
            .group_by(TRIAL.c.config_hash)
        )
        return self._read_newest(newest, exclude_task)

    def timed_trials(self, key: TaskKey, *, exclude_task: int | None = None) -> list[TrialRecord]:
        """Times of binaries from any revision of the kernel: one correct trial per binary.

        Kernel name, workload, device, toolchain and protocol are equal. Returns the newest trial of
        each binary, oldest first. The time is valid for an equal binary; its outputs must be
        verified again.
        """
        newest = (
            select(func.max(TRIAL.c.id))
            .select_from(TASKS.join(TRIAL).join(MEASUREMENT))
            .where(
                KERNEL.c.name == key.kernel,
                WORKLOAD.c.identity == workload_values(key.workload)["identity"],
                DEVICE.c.fingerprint == key.device.fingerprint,
                TOOLCHAIN.c.key == key.toolchain.key,
                TASK.c.protocol == key.protocol,
                MEASURED,
                TRIAL.c.status == Status.CORRECT,
                TRIAL.c.source.in_((Source.MEASURED, Source.VERIFIED)),
                TRIAL.c.binary_hash != "",
                MEASUREMENT.c.median_us.is_not(None),
            )
            .group_by(TRIAL.c.binary_hash)
        )
        return self._read_newest(newest, exclude_task)

    def _read_newest(self, newest: Select[Any], exclude_task: int | None) -> list[TrialRecord]:
        """The trials whose numbers a query gives, without those of a task, in their order."""
        if exclude_task is not None:
            newest = newest.where(TASK.c.id != exclude_task)
        return self._read_all(
            TRIALS.where(TRIAL.c.id.in_(newest)).order_by(TRIAL.c.id), trial_record
        )

    def find_trials(self, which: TrialFilter) -> list[FoundTrial]:
        """The matching trials, with all copies of them and all trials they were copied from.

        They are in the order of storage.
        """

        def find(connection: Connection) -> list[FoundTrial]:
            rows = connection.execute(_matching(which)).all()
            matching = [row for row in rows if _fits(workload_of(row.dims, row.key), which)]
            related = _find_related(connection, {row.attempt_id for row in matching})
            copies = [
                row
                for part in split_values(sorted(related))
                for row in connection.execute(_FOUND.where(TRIAL.c.attempt_id.in_(part)))
            ]
            ordered = sorted([*matching, *copies], key=lambda row: int(row.id))
            return [_record(row) for row in ordered]

        return self._read(find)

    def list_trials(self, which: TrialFilter) -> list[FoundTrial]:
        """The matching trials alone, by task and number."""

        def find(connection: Connection) -> list[FoundTrial]:
            rows = connection.execute(_matching(which).order_by(TRIAL.c.task_id, TRIAL.c.number))
            return [trial for trial in map(_record, rows) if _fits(trial.workload, which)]

        return self._read(find)

    def count_prunable(self, runs: Sequence[int]) -> dict[int, int]:
        """How many trials `prune` would delete of each of these runs that has any."""
        taken = self._find_taken(runs)
        query = select(TASK.c.run_id, TASK.c.id, func.count()).select_from(TRIAL.join(TASK))
        query = query.where(TASK.c.run_id.in_(runs)).group_by(TASK.c.run_id, TASK.c.id)
        counts: Counter[int] = Counter()
        for run_id, task_id, trials in self._read(lambda each: each.execute(query).all()):
            counts[run_id] += trials - len(taken.get(task_id, ()))
        return {run_id: trials for run_id, trials in counts.items() if trials}

    def prune(self, runs: Sequence[int]) -> int:
        """Delete the trials of these runs, without those whose results another run has taken over;
        returns their number.

        What such a trial was copied from, itself or through other copies, is left too. Each task
        is one transaction. Raises `LeaseLostError` for a run that a driver holds.
        """
        taken = self._find_taken(runs)
        query = select(TASK.c.id).where(TASK.c.run_id.in_(runs)).order_by(TASK.c.id)
        return sum(
            self._write_task(
                task_id, partial(_prune, task_id=task_id, taken=taken.get(task_id, frozenset()))
            )
            for task_id in self._read(lambda each: each.scalars(query).all())
        )

    def _find_taken(self, runs: Sequence[int]) -> dict[int, set[str]]:
        """By task of these runs, the attempts whose results another run has, or has through
        others."""
        copied = select(TRIAL.c.copied_from.label("attempt")).where(COPIED)
        taken = copied.join(TASK).where(TASK.c.run_id.not_in(runs)).cte("taken", recursive=True)
        taken = taken.union(copied.join(taken, TRIAL.c.attempt_id == taken.c.attempt))
        query = select(TRIAL.c.task_id, TRIAL.c.attempt_id).select_from(
            taken.join(TRIAL, TRIAL.c.attempt_id == taken.c.attempt).join(TASK)
        )
        found: dict[int, set[str]] = defaultdict(set)
        for task_id, attempt in self._read(
            lambda each: each.execute(query.where(TASK.c.run_id.in_(runs))).all()
        ):
            found[task_id].add(attempt)
        return found

    def list_kernels(self) -> list[str]:
        """The names of all kernels that have tasks."""
        query = select(KERNEL.c.name).distinct().order_by(KERNEL.c.name)
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


_FOUND: Any = select(
    *(TRIAL.c[each.column] for each in stored_fields(FoundTrial) if each.column in TRIAL.c),
    MEASUREMENT.c.median_us,
    MEASUREMENT.c.verified_by,
    TASK.c.run_id,
    KERNEL.c.name.label("kernel"),
    DEVICE.c.name.label("device"),
    WORKLOAD.c.dims,
    WORKLOAD.c.key,
    TRIAL.c.id,
).select_from(TASKS.join(TRIAL).outerjoin(MEASUREMENT))


def _matching(which: TrialFilter) -> Any:
    query = _FOUND.where(TRIAL.c.status.in_([*map(str, which.statuses)]))
    if which.run_id is not None:
        query = query.where(TASK.c.run_id == which.run_id)
    if which.kernel is not None:
        query = query.where(KERNEL.c.name == which.kernel)
    if which.text:
        text = which.text.lower()
        contained = (func.lower(part).contains(text, autoescape=True) for part in _TEXTS)
        query = query.where(or_(*contained))
    return query


_TEXTS = (TRIAL.c.message, TRIAL.c.detail)


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
                connection.scalars(
                    select(TRIAL.c.attempt_id).where(COPIED, TRIAL.c.copied_from.in_(part))
                )
            )
            sources = select(TRIAL.c.copied_from).where(TRIAL.c.attempt_id.in_(part), COPIED)
            found |= set(connection.scalars(sources))
        new = found - known
        known |= new
    return known - attempts


def _prune(connection: Connection, task_id: int, taken: Collection[str]) -> int:
    stored = connection.scalars(select(TRIAL.c.attempt_id).where(TRIAL.c.task_id == task_id))
    return _forget(connection, task_id, [each for each in stored if each not in taken])


def _forget(connection: Connection, task_id: int, attempts: Sequence[str]) -> int:
    deleted = 0
    for part in split_values(attempts):
        ids = list(
            connection.scalars(
                select(TRIAL.c.id).where(TRIAL.c.task_id == task_id, TRIAL.c.attempt_id.in_(part))
            )
        )
        connection.execute(delete(MEASUREMENT).where(MEASUREMENT.c.trial_id.in_(ids)))
        deleted += connection.execute(delete(TRIAL).where(TRIAL.c.id.in_(ids))).rowcount
    _set_best(connection, task_id)
    _reopen(connection, task_id)
    return deleted


def _set_best(connection: Connection, task_id: int) -> None:
    """Set the best time of a task to that of the trials that are left."""
    left = select(func.min(MEASUREMENT.c.median_us)).join(
        TRIAL, MEASUREMENT.c.trial_id == TRIAL.c.id
    )
    best = left.where(TRIAL.c.task_id == task_id, TRIAL.c.status == Status.CORRECT)
    connection.execute(
        update(TASK).where(TASK.c.id == task_id).values(best_us=best.scalar_subquery())
    )


def _reopen(connection: Connection, task_id: int) -> None:
    """Return a task of an unfinished run to its search."""
    unfinished = select(RUN.c.id).where(RUN.c.status.in_(UNFINISHED))
    connection.execute(
        update(TASK)
        .where(TASK.c.id == task_id, TASK.c.run_id.in_(unfinished))
        .values(stage=Stage.SEARCH)
    )


def _record(row: Any) -> FoundTrial:
    others = ("run_id", "kernel", "device", "median_us", "verified_by")
    own = {name: getattr(row, name) for name in others}
    return record_of(FoundTrial, row, TRIAL, **own, workload=workload_of(row.dims, row.key))
