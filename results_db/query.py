"""The queries of the store; their results are records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, Table, select

from results_db import clock, convert
from results_db.stored_records import (
    BaselineRecord,
    FinalRecord,
    RunInfo,
    RunStatus,
    TaskInfo,
    TaskKey,
)
from results_db.tables import (
    BASELINE,
    CALIBRATION,
    CAMPAIGN,
    DEVICE,
    FINALIST,
    KERNEL,
    MEASUREMENT,
    RUN,
    SELECTION,
    TASK,
    TASKS,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
)
from search_spaces.records import Config, Workload, config_key

Item = TypeVar("Item")
_Part = TypeVar("_Part", BaselineRecord, FinalRecord)
UNFINISHED = (RunStatus.RUNNING, RunStatus.INTERRUPTED)
#: Most values that one statement names.
_AT_ONCE = 500
#: What `convert.run_info`, `task_info`, `calibration_record` and `trial_record` read.
RUNS = select(RUN, CAMPAIGN.c.name, clock.age_s(RUN.c.heartbeat_at).label("silent_s")).select_from(
    RUN.join(CAMPAIGN)
)
TASK_ROWS = select(TASK, KERNEL, WORKLOAD, DEVICE, TOOLCHAIN, SELECTION).select_from(
    TASKS.outerjoin(SELECTION)
)
CALIBRATIONS = select(CALIBRATION, DEVICE, TOOLCHAIN).select_from(
    CALIBRATION.join(DEVICE).join(TOOLCHAIN)
)
TRIALS = select(*convert.TRIAL_ROW).select_from(TRIAL.outerjoin(MEASUREMENT))


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
    query = RUNS.order_by(RUN.c.id.desc()).limit(limit)
    if campaign is not None:
        query = query.where(CAMPAIGN.c.name == campaign)
    if spec_hash is not None:
        query = query.where(RUN.c.spec_hash == spec_hash)
    if statuses:
        query = query.where(RUN.c.status.in_(statuses))
    if before is not None:
        query = query.where(RUN.c.id < before)
    return [convert.run_info(row) for row in connection.execute(query)]


def lock_campaign(connection: Connection, campaign_id: int) -> None:
    """Block other transactions at this call for the same campaign until this one ends.

    SQLite ignores the clause: a writing transaction is exclusive there.
    """
    connection.execute(select(CAMPAIGN.c.id).where(CAMPAIGN.c.id == campaign_id).with_for_update())


def run(connection: Connection, run_id: int) -> RunInfo | None:
    row = connection.execute(RUNS.where(RUN.c.id == run_id)).first()
    return None if row is None else convert.run_info(row)


def tasks(connection: Connection, run_id: int) -> list[TaskInfo]:
    """The tasks of a run in the order of their declaration."""
    query = TASK_ROWS.where(TASK.c.run_id == run_id).order_by(TASK.c.id)
    return _tasks(connection, connection.execute(query).all())


def number_tasks(connection: Connection, run_id: int) -> dict[int, int]:
    """The tasks of a run, numbered from 1 in the order of their declaration, by their ids."""
    query = select(TASK.c.id).where(TASK.c.run_id == run_id).order_by(TASK.c.id)
    return {id: number for number, id in enumerate(connection.scalars(query), 1)}


def load_tasks(connection: Connection, task_ids: Sequence[int]) -> dict[int, TaskInfo]:
    """The tasks of these numbers by number; unknown numbers are left out."""
    found = _select_in(connection, TASK_ROWS, TASK.c.id, task_ids)
    return {task.task_id: task for task in _tasks(connection, list(found))}


def _tasks(connection: Connection, found: Sequence[Row[Any]]) -> list[TaskInfo]:
    """The records of rows of `TASK_ROWS`."""
    ids = [row._mapping[TASK.c.id] for row in found]
    baselines = _parts(connection, BaselineRecord, BASELINE, ids)
    finals = _parts(connection, FinalRecord, FINALIST, ids)
    return [
        convert.task_info(row, baselines.get(id, ()), finals.get(id, ()))
        for id, row in zip(ids, found, strict=True)
    ]


def _parts(
    connection: Connection, kind: type[_Part], table: Table, ids: Sequence[int]
) -> dict[int, list[_Part]]:
    """The records of a table by their task, in their order."""
    query = select(table).order_by(table.c.task_id, table.c.position)
    found: dict[int, list[_Part]] = {}
    for row in _select_in(connection, query, table.c.task_id, ids):
        found.setdefault(row.task_id, []).append(convert.record_of(kind, row, table))
    return found


def _select_in(
    connection: Connection, query: Select[Any], column: Any, values: Sequence[int]
) -> Iterator[Row[Any]]:
    """The rows of a query with these values in a column."""
    for part in split_values(values):
        yield from connection.execute(query.where(column.in_(part)))


def find_settled(connection: Connection, key: TaskKey, exclude_task: int | None) -> TaskInfo | None:
    """The newest task with the same reuse key and space and a confirmed outcome."""
    query = (
        TASK_ROWS.where(
            TASK.c.reuse_key == convert.reuse_key(key),
            KERNEL.c.space_hash == key.space_hash,
            SELECTION.c.median_us.is_not(None),
            TASK.c.id != (exclude_task or 0),
        )
        .order_by(TASK.c.id.desc())
        .limit(1)
    )
    return next(iter(_tasks(connection, connection.execute(query).all())), None)


def kernel_tasks(
    connection: Connection,
    kernel: str,
    words: Sequence[str],
    campaign: str | None,
    limit: int,
) -> list[tuple[RunInfo, TaskInfo]]:
    """Tasks of a kernel with their runs, without left-out sizes of ranges; see `Store`."""
    query = (
        select(TASK.c.id, TASK.c.run_id, WORKLOAD.c.key, DEVICE.c.name)
        .select_from(TASKS.join(RUN).join(CAMPAIGN))
        .where(KERNEL.c.name == kernel)
        .order_by(TASK.c.run_id.desc(), TASK.c.id.desc())
    )
    if campaign is not None:
        query = query.where(CAMPAIGN.c.name == campaign)
    chosen: list[int] = []
    seen: dict[tuple[str, str], set[int]] = {}
    for task_id, run_id, key, device in connection.execute(query):
        run_ids = seen.setdefault((key, device), set())
        if (run_id in run_ids or len(run_ids) < limit) and set(words) <= set(key.split()):
            run_ids.add(run_id)
            chosen.append(task_id)
    used = sorted(set().union(*seen.values()))
    infos = map(convert.run_info, _select_in(connection, RUNS, RUN.c.id, used))
    known = {info.run_id: info for info in infos}
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
        select(WORKLOAD.c.dims, SELECTION.c.winner, TASK.c.place)
        .select_from(TASKS.join(SELECTION))
        .where(KERNEL.c.name == kernel)
        .order_by(SELECTION.c.recorded_at.desc(), SELECTION.c.id.desc())
    )
    if fingerprint is not None:
        query = query.where(DEVICE.c.fingerprint == fingerprint)
    if before_run is not None:
        query = query.where(TASK.c.run_id < before_run)
    found: dict[tuple[str, str], tuple[Workload, Config]] = {}
    for dims, winner, place in connection.execute(query):
        if place.get("held_out"):
            continue
        workload = Workload.from_mapping(dims)
        found.setdefault((config_key(dims), config_key(winner)), (workload, winner))
        if len(found) == limit:
            break
    return list(found.values())
