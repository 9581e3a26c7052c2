"""Summaries of a run for listings. The database computes them; no trial is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from results_db.convert import record_of
from results_db.stored_records import (
    BaselineRecord,
    RunChecks,
    RunStatus,
    SelectionRecord,
    Source,
    TaskSummary,
    describe_wrong,
)
from results_db.tables import (
    BASELINE,
    DEVICE,
    KERNEL,
    MEASUREMENT,
    RUN,
    SELECTION,
    TASK,
    TASKS,
    TRIAL,
    WORKLOAD,
)
from search_spaces.records import Status


def tasks(connection: Connection, run_id: int, task_id: int | None) -> list[TaskSummary]:
    """The tasks of a run in the order they were added, or the one with a number."""
    which = TASK.c.run_id == run_id
    if task_id is not None:
        which &= TASK.c.id == task_id
    right = func.count().filter(TRIAL.c.status == Status.CORRECT)
    # The index on task and status alone answers this query.
    counts = (
        select(TRIAL.c.task_id, func.count().label("trials"), right.label("correct"))
        .where(TRIAL.c.task_id.in_(select(TASK.c.id).where(which)))
        .group_by(TRIAL.c.task_id)
        .subquery()
    )
    columns: dict[str, Any] = {
        "task_id": TASK.c.id,
        "kernel": KERNEL.c.name,
        "workload": WORKLOAD.c.key,
        "device": DEVICE.c.name,
        "stage": TASK.c.stage,
        "note": TASK.c.note,
        "trials": func.coalesce(counts.c.trials, 0),
        "correct": func.coalesce(counts.c.correct, 0),
        "best_us": TASK.c.best_us,
    }
    query = (
        select(*(column.label(name) for name, column in columns.items()))
        .select_from(TASKS)
        .outerjoin(counts, counts.c.task_id == TASK.c.id)
        .where(which)
        .order_by(TASK.c.id)
    )
    chosen = _selections(connection, which)
    rows = connection.execute(query).mappings()
    timed = _baselines(connection, which)
    found = [
        TaskSummary(
            **row,
            selection=chosen.get(row["task_id"]),
            baselines=tuple(timed.get(row["task_id"], ())),
        )
        for row in rows
    ]
    return [task if task.correct else _explain(connection, task) for task in found]


def _selections(connection: Connection, which: ColumnElement[bool]) -> dict[int, SelectionRecord]:
    query = select(SELECTION).select_from(SELECTION.join(TASK)).where(which)
    found = connection.execute(query)
    return {row.task_id: record_of(SelectionRecord, row, SELECTION) for row in found}


def _baselines(
    connection: Connection, which: ColumnElement[bool]
) -> dict[int, list[BaselineRecord]]:
    """The baselines by task, without their samples."""
    columns = [column for column in BASELINE.c if column is not BASELINE.c.samples_us]
    query = select(*columns).select_from(BASELINE.join(TASK)).where(which)
    query = query.order_by(TASK.c.id, BASELINE.c.position)
    found: dict[int, list[BaselineRecord]] = {}
    for row in connection.execute(query):
        record = record_of(BaselineRecord, row, BASELINE, samples_us=())
        found.setdefault(row.task_id, []).append(record)
    return found


def count_states(connection: Connection) -> dict[str, dict[str, int]]:
    """How many runs and trials have each status, and tasks of running runs each stage."""
    running = select(RUN.c.id).where(RUN.c.status == RunStatus.RUNNING)
    found = {}
    for name, state in (("run", RUN.c.status), ("task", TASK.c.stage), ("trial", TRIAL.c.status)):
        query = select(state, func.count()).group_by(state)
        query = query.where(TASK.c.run_id.in_(running)) if name == "task" else query
        found[name] = {f"{each}": count for each, count in connection.execute(query)}
    return found


def count_device_compiles(connection: Connection, run_id: int) -> tuple[int, str]:
    """The number of launches that compiled on a device worker, and the message of one trial."""
    query = (
        select(MEASUREMENT.c.compiled, TRIAL.c.status, TRIAL.c.message)
        .select_from(TASK.join(TRIAL).join(MEASUREMENT))
        .where(
            TASK.c.run_id == run_id, TRIAL.c.source == Source.MEASURED, MEASUREMENT.c.compiled > 0
        )
    )
    rows = connection.execute(query).all()
    messages = (message for _, status, message in rows if status == Status.CORRECT and message)
    return sum(count for count, _, _ in rows), next(messages, "")


def summarize_checks(connection: Connection, run_id: int) -> RunChecks:
    """What the checks of a run's trials found."""
    of_run = TRIAL.c.task_id.in_(select(TASK.c.id).where(TASK.c.run_id == run_id))
    wrong = of_run & (TRIAL.c.status == Status.CORRECTNESS)
    count = connection.scalar(select(func.count()).select_from(TRIAL).where(wrong)) or 0
    query = select(TRIAL.c.config, TRIAL.c.message).where(wrong).order_by(TRIAL.c.id).limit(1)
    first = connection.execute(query).first()
    run = func.count().filter(MEASUREMENT.c.verified_by != "")
    untimed = of_run & (TRIAL.c.status == Status.CORRECT) & MEASUREMENT.c.median_us.is_(None)
    counts = select(func.count(), run).select_from(TRIAL.outerjoin(MEASUREMENT)).where(untimed)
    total, checked = connection.execute(counts).one()
    found = describe_wrong(count, first.config, first.message) if first else ""
    return RunChecks(found, checked, total - checked)


def _explain(connection: Connection, task: TaskSummary) -> TaskSummary:
    """Add the most frequent failure to a task without a correct trial."""
    count = func.count()
    query = (
        select(TRIAL.c.status, TRIAL.c.message, count)
        .where(TRIAL.c.task_id == task.task_id)
        .group_by(TRIAL.c.status, TRIAL.c.message)
        .order_by(count.desc(), func.min(TRIAL.c.number))
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None:
        return task
    return replace(task, failure=f"{row[0]}: {row[1]}", failures=row[2])
