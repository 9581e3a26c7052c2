"""Summaries of a run for listings. The database computes them; no trial is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.orm import Session

from results_db import convert
from results_db.models import (
    Baseline,
    Device,
    Kernel,
    Measurement,
    Selection,
    Task,
    Trial,
    Workload,
)
from results_db.stored_records import (
    BaselineRecord,
    RunChecks,
    SelectionRecord,
    Source,
    TaskSummary,
    describe_wrong,
)
from search_spaces.records import Status


def tasks(connection: Connection, run_id: int, task_id: int | None) -> list[TaskSummary]:
    """The tasks of a run in the order they were added, or the one with a number."""
    which = Task.run_id == run_id
    if task_id is not None:
        which &= Task.id == task_id
    right = func.count().filter(Trial.status == Status.CORRECT)
    # The index on task and status alone answers this query.
    counts = (
        select(Trial.task_id, func.count().label("trials"), right.label("correct"))
        .where(Trial.task_id.in_(select(Task.id).where(which)))
        .group_by(Trial.task_id)
        .subquery()
    )
    columns: dict[str, Any] = {
        "task_id": Task.id,
        "kernel": Kernel.name,
        "workload": Workload.key,
        "device": Device.name,
        "stage": Task.stage,
        "note": Task.note,
        "trials": func.coalesce(counts.c.trials, 0),
        "correct": func.coalesce(counts.c.correct, 0),
        "best_us": Task.best_us,
    }
    query = (
        select(*(column.label(name) for name, column in columns.items()))
        .select_from(Task)
        .join(Kernel, Task.kernel_id == Kernel.id)
        .join(Workload, Task.workload_id == Workload.id)
        .join(Device, Task.device_id == Device.id)
        .outerjoin(counts, counts.c.task_id == Task.id)
        .where(which)
        .order_by(Task.id)
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
    query = select(Selection).join(Task, Selection.task_id == Task.id).where(which)
    with Session(connection) as session:
        return {row.task_id: convert.selection_record(row) for row in session.scalars(query)}


def _baselines(
    connection: Connection, which: ColumnElement[bool]
) -> dict[int, list[BaselineRecord]]:
    """The baselines by task, without their samples."""
    names = ("status", "name", "median_us", "log_ratio", "log_ratio_low", "log_ratio_high")
    query = (
        select(Task.id, *(getattr(Baseline, name) for name in names))
        .join(Task, Baseline.task_id == Task.id)
        .where(which)
        .order_by(Task.id, Baseline.position)
    )
    found: dict[int, list[BaselineRecord]] = {}
    for row in connection.execute(query):
        ratio = convert.log_ratio(row)
        record = BaselineRecord(row.name, Status(row.status), row.median_us, ratio)
        found.setdefault(row.id, []).append(record)
    return found


def count_device_compiles(connection: Connection, run_id: int) -> tuple[int, str]:
    """The number of launches that compiled on a device worker, and the message of one trial."""
    query = (
        select(Measurement.compiled, Trial.status, Trial.message)
        .join(Trial, Measurement.trial_id == Trial.id)
        .join(Task, Trial.task_id == Task.id)
        .where(Task.run_id == run_id, Trial.source == Source.MEASURED, Measurement.compiled > 0)
    )
    rows = connection.execute(query).all()
    messages = (message for _, status, message in rows if status == Status.CORRECT and message)
    return sum(count for count, _, _ in rows), next(messages, "")


def summarize_checks(connection: Connection, run_id: int) -> RunChecks:
    """What the checks of a run's trials found."""
    of_run = Trial.task_id.in_(select(Task.id).where(Task.run_id == run_id))
    wrong = of_run & (Trial.status == Status.CORRECTNESS)
    count = connection.scalar(select(func.count()).select_from(Trial).where(wrong)) or 0
    query = select(Trial.config, Trial.message).where(wrong).order_by(Trial.id).limit(1)
    first = connection.execute(query).first()
    run = func.count().filter(Measurement.verified_by != "")
    untimed = of_run & (Trial.status == Status.CORRECT) & Measurement.median_us.is_(None)
    counts = (
        select(func.count(), run)
        .select_from(Trial)
        .outerjoin(Measurement, Measurement.trial_id == Trial.id)
        .where(untimed)
    )
    total, checked = connection.execute(counts).one()
    found = describe_wrong(count, first.config, first.message) if first else ""
    return RunChecks(found, checked, total - checked)


def _explain(connection: Connection, task: TaskSummary) -> TaskSummary:
    """Add the most frequent failure to a task without a correct trial."""
    count = func.count()
    query = (
        select(Trial.status, Trial.message, count)
        .where(Trial.task_id == task.task_id)
        .group_by(Trial.status, Trial.message)
        .order_by(count.desc(), func.min(Trial.number))
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is None:
        return task
    return replace(task, failure=f"{row[0]}: {row[1]}", failures=row[2])
