"""The queries of the store; their results are records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection, func, select
from sqlalchemy.orm import Session

from results_db import clock, convert
from results_db.models import (
    Calibration,
    Campaign,
    Device,
    Export,
    Kernel,
    Measurement,
    Run,
    ScheduleFire,
    Selection,
    Task,
    Toolchain,
    Trial,
)
from results_db.models import Workload as WorkloadRow
from results_db.stored_records import (
    CalibrationRecord,
    ExportInfo,
    Fire,
    RunInfo,
    RunStatus,
    Source,
    TaskInfo,
    TaskKey,
    TrialRecord,
)
from search_spaces.records import Config, Status, Workload, config_key

Item = TypeVar("Item")
UNFINISHED = (RunStatus.RUNNING, RunStatus.INTERRUPTED)
#: Most values that one statement names.
_AT_ONCE = 500
_RUN = select(Run, clock.age_s(Run.heartbeat_at))
_TRIAL = select(*convert.TRIAL_ROW).select_from(Trial).outerjoin(Measurement)


def runs(
    connection: Connection,
    *,
    campaign: str | None = None,
    spec_hash: str | None = None,
    statuses: Sequence[str] = (),
    before: int | None = None,
    limit: int | None = None,
) -> list[RunInfo]:
    """Runs, newest first. before: only those with lower numbers."""
    query = _RUN.join(Run.campaign).order_by(Run.id.desc()).limit(limit)
    if campaign is not None:
        query = query.where(Campaign.name == campaign)
    if spec_hash is not None:
        query = query.where(Run.spec_hash == spec_hash)
    if statuses:
        query = query.where(Run.status.in_(statuses))
    if before is not None:
        query = query.where(Run.id < before)
    with Session(connection) as session:
        return [convert.run_info(*row) for row in session.execute(query)]


def lock_campaign(connection: Connection, campaign_id: int) -> None:
    """Block other transactions at this call for the same campaign until this one ends.

    SQLite ignores the clause: a writing transaction is exclusive there.
    """
    connection.execute(select(Campaign.id).where(Campaign.id == campaign_id).with_for_update())


def run(connection: Connection, run_id: int) -> RunInfo | None:
    with Session(connection) as session:
        row = session.execute(_RUN.where(Run.id == run_id)).first()
        return None if row is None else convert.run_info(*row)


def tasks(connection: Connection, run_id: int) -> list[TaskInfo]:
    """The tasks of a run in the order of their declaration."""
    query = select(Task).where(Task.run_id == run_id).order_by(Task.id)
    with Session(connection) as session:
        return [convert.task_info(row) for row in session.scalars(query)]


def load_tasks(connection: Connection, task_ids: Sequence[int]) -> dict[int, TaskInfo]:
    """The tasks of these numbers by number; unknown numbers are left out."""
    with Session(connection) as session:
        rows = (
            row
            for ids in split_values(task_ids)
            for row in session.scalars(select(Task).where(Task.id.in_(ids)))
        )
        return {row.id: convert.task_info(row) for row in rows}


def trials(connection: Connection, task_id: int, number: int | None) -> list[TrialRecord]:
    """The trials of a task by number, or the one with a number."""
    query = _TRIAL.where(Trial.task_id == task_id).order_by(Trial.number)
    if number is not None:
        query = query.where(Trial.number == number)
    return [convert.trial_record(row) for row in connection.execute(query)]


def known_trials(
    connection: Connection, key: TaskKey, exclude_task: int | None
) -> list[TrialRecord]:
    """The newest evaluated trial of each config, over all tasks with the same reuse key."""
    newest = (
        select(func.max(Trial.id))
        .join(Task, Trial.task_id == Task.id)
        .where(Task.reuse_key == convert.reuse_key(key), Trial.source != Source.REUSED)
        .group_by(Trial.config_hash)
    )
    if exclude_task is not None:
        newest = newest.where(Task.id != exclude_task)
    query = _TRIAL.where(Trial.id.in_(newest)).order_by(Trial.id)
    return [convert.trial_record(row) for row in connection.execute(query)]


def timed_trials(
    connection: Connection, key: TaskKey, exclude_task: int | None
) -> list[TrialRecord]:
    """The newest correct timed trial of each binary, for any revision of the kernel."""
    newest = (
        select(func.max(Trial.id))
        .join(Task, Trial.task_id == Task.id)
        .join(Measurement, Measurement.trial_id == Trial.id)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(WorkloadRow, Task.workload_id == WorkloadRow.id)
        .join(Device, Task.device_id == Device.id)
        .join(Toolchain, Task.toolchain_id == Toolchain.id)
        .where(
            Kernel.name == key.kernel,
            WorkloadRow.identity == convert.workload_values(key.workload)["identity"],
            Device.fingerprint == key.device.fingerprint,
            Toolchain.key == key.toolchain.key,
            Task.protocol == key.protocol,
            Task.id != (exclude_task or 0),
            Trial.status == Status.CORRECT,
            Trial.source.in_((Source.MEASURED, Source.VERIFIED)),
            Trial.binary_hash != "",
            Measurement.median_us.is_not(None),
        )
        .group_by(Trial.binary_hash)
    )
    query = _TRIAL.where(Trial.id.in_(newest)).order_by(Trial.id)
    return [convert.trial_record(row) for row in connection.execute(query)]


def find_settled(connection: Connection, key: TaskKey, exclude_task: int | None) -> TaskInfo | None:
    """The newest task with the same reuse key and space and a confirmed outcome."""
    query = (
        select(Task)
        .join(Selection, Selection.task_id == Task.id)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .where(
            Task.reuse_key == convert.reuse_key(key),
            Kernel.space_hash == key.space_hash,
            Selection.median_us.is_not(None),
            Task.id != (exclude_task or 0),
        )
        .order_by(Task.id.desc())
        .limit(1)
    )
    with Session(connection) as session:
        row = session.scalars(query).first()
        return None if row is None else convert.task_info(row)


def kernel_tasks(
    connection: Connection,
    kernel: str,
    words: Sequence[str],
    campaign: str | None,
    limit: int,
) -> list[tuple[RunInfo, TaskInfo]]:
    """Tasks of a kernel with their runs, without left-out sizes of ranges; see `Store`."""
    query = (
        select(Task.id, Task.run_id, WorkloadRow.key, Device.name)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(WorkloadRow, Task.workload_id == WorkloadRow.id)
        .join(Device, Task.device_id == Device.id)
        .join(Run, Task.run_id == Run.id)
        .join(Campaign, Run.campaign_id == Campaign.id)
        .where(Kernel.name == kernel)
        .order_by(Task.run_id.desc(), Task.id.desc())
    )
    if campaign is not None:
        query = query.where(Campaign.name == campaign)
    chosen: list[int] = []
    seen: dict[tuple[str, str], set[int]] = {}
    for task_id, run_id, key, device in connection.execute(query):
        run_ids = seen.setdefault((key, device), set())
        if (run_id in run_ids or len(run_ids) < limit) and set(words) <= set(key.split()):
            run_ids.add(run_id)
            chosen.append(task_id)
    used = sorted(set().union(*seen.values()))
    with Session(connection) as session:
        rows = (
            row
            for ids in split_values(used)
            for row in session.execute(_RUN.where(Run.id.in_(ids)))
        )
        known = {row[0].id: convert.run_info(*row) for row in rows}
    loaded = load_tasks(connection, chosen).values()
    return [(known[task.run_id], task) for task in loaded if not task.left_out]


def split_values(values: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The values in parts that one statement takes."""
    return (values[at : at + _AT_ONCE] for at in range(0, len(values), _AT_ONCE))


def winners(
    connection: Connection,
    kernel: str,
    fingerprint: str | None,
    limit: int,
    before_run: int | None,
) -> list[tuple[Workload, Config]]:
    """Winners of a kernel, newest first, each pair of workload and config once.

    Without those of sizes that were held out, so that no later choice knows them.
    """
    query = (
        select(WorkloadRow.dims, Selection.winner, Task.place)
        .select_from(Selection)
        .join(Task, Selection.task_id == Task.id)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(Device, Task.device_id == Device.id)
        .join(WorkloadRow, Task.workload_id == WorkloadRow.id)
        .where(Kernel.name == kernel)
        .order_by(Selection.recorded_at.desc(), Selection.id.desc())
    )
    if fingerprint is not None:
        query = query.where(Device.fingerprint == fingerprint)
    if before_run is not None:
        query = query.where(Task.run_id < before_run)
    found: dict[tuple[str, str], tuple[Workload, Config]] = {}
    for dims, winner, place in connection.execute(query):
        if place.get("held_out"):
            continue
        found.setdefault((config_key(dims), config_key(winner)), (_workload(dims), winner))
        if len(found) == limit:
            break
    return list(found.values())


def calibrations(connection: Connection, fingerprint: str | None) -> list[CalibrationRecord]:
    """Calibrations of devices, newest first."""
    query = select(Calibration).join(Calibration.device).order_by(Calibration.id.desc())
    if fingerprint is not None:
        query = query.where(Device.fingerprint == fingerprint)
    with Session(connection) as session:
        return [convert.calibration_record(row) for row in session.scalars(query)]


def fires(connection: Connection, schedule: str | None, limit: int | None) -> list[Fire]:
    """Firings, latest instant first."""
    query = select(ScheduleFire).order_by(ScheduleFire.instant.desc(), ScheduleFire.id.desc())
    if schedule is not None:
        query = query.where(ScheduleFire.schedule == schedule)
    with Session(connection) as session:
        return [convert.fire(row) for row in session.scalars(query.limit(limit))]


def last_fire(connection: Connection, schedule: str, upto: datetime | None) -> Fire | None:
    """The firing with the latest instant among those recorded up to `upto`."""
    query = select(ScheduleFire).where(ScheduleFire.schedule == schedule)
    if upto is not None:
        known = ScheduleFire.fired_at.is_not(None)
        query = query.where(~known | (ScheduleFire.fired_at <= upto))
    with Session(connection) as session:
        row = session.scalars(query.order_by(ScheduleFire.instant.desc()).limit(1)).first()
        return None if row is None else convert.fire(row)


def exports(connection: Connection) -> list[ExportInfo]:
    """Exports, newest first."""
    with Session(connection) as session:
        rows = session.scalars(select(Export).order_by(Export.id.desc()))
        return [convert.export_info(row) for row in rows]


def _workload(dims: dict[str, bool | int | float | str | None]) -> Workload:
    return Workload.from_mapping(dims)
