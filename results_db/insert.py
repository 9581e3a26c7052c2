"""Inserts that tolerate concurrent writers: nothing is stored twice."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, or_, select, update
from sqlalchemy.dialects import sqlite

from results_db import convert
from results_db.stored_records import TaskKey
from results_db.tables import (
    BASELINE,
    CALIBRATION,
    CAMPAIGN,
    DEVICE,
    FINALIST,
    KERNEL,
    MEASUREMENT,
    SELECTION,
    TASK,
    TOOLCHAIN,
    TRIAL,
    WORKLOAD,
)
from search_spaces.records import Device, Status, Toolchain

_BEST = (
    update(TASK)
    .where(
        TASK.c.id == bindparam("of_task"),
        or_(TASK.c.best_us.is_(None), TASK.c.best_us > bindparam("median_us")),
    )
    .values(best_us=bindparam("median_us"))
)


def new_id(connection: Connection, table: Table, values: dict[str, Any]) -> int | None:
    """Insert a row and return its id; None if a UNIQUE constraint refuses it."""
    # Values are parameters, so that the statement is compiled only once.
    statement = _insert(connection, table).on_conflict_do_nothing()
    row = connection.execute(statement.returning(table.c.id), values).first()
    return None if row is None else int(row[0])


def intern(connection: Connection, table: Table, values: dict[str, Any], *key: str) -> int:
    """The id of the row with the `key` columns of `values`; inserts a missing row."""
    query = select(table.c.id).where(*(table.c[name] == values[name] for name in key))
    found: int | None = connection.scalar(query)
    if found is None:
        found = new_id(connection, table, values)
    return connection.execute(query).scalar_one() if found is None else found


def campaign_id(connection: Connection, name: str) -> int:
    return intern(connection, CAMPAIGN, {"name": name}, "name")


def kernel_id(connection: Connection, key: TaskKey) -> int:
    """The id of a kernel with its identity; inserts a missing one."""
    kernel = {
        "name": key.kernel,
        "launch_hash": key.launch_hash,
        "space_hash": key.space_hash,
    }
    also = {"kernel_hashes": list(key.kernel_hashes)}
    return intern(connection, KERNEL, {**kernel, **also}, *kernel)


def task_id(connection: Connection, run_id: int, key: TaskKey, facts: dict[str, Any]) -> int:
    """The id of a run's task; inserts a missing task. `facts` of an existing task stay."""
    values = {
        "run_id": run_id,
        "kernel_id": kernel_id(connection, key),
        "workload_id": intern(
            connection, WORKLOAD, convert.workload_values(key.workload), "identity"
        ),
        **_where(connection, key.device, key.toolchain),
        "protocol": key.protocol,
        "reuse_key": convert.reuse_key(key),
        **facts,
    }
    return intern(connection, TASK, values, "run_id", "kernel_id", "reuse_key")


def calibration(
    connection: Connection, device: Device, toolchain: Toolchain, values: dict[str, Any]
) -> bool:
    """Insert a calibration; False if an identical one is stored."""
    values = {**values, **_where(connection, device, toolchain)}
    return new_id(connection, CALIBRATION, values) is not None


def trial(
    connection: Connection,
    values: dict[str, Any],
    measurement: dict[str, Any] | None,
    best_us: float | None,
) -> bool:
    """Insert a trial with its measurement; False if its attempt, config or number is stored.

    best_us: the task's best time so far. The same transaction updates it, so that listings need
    not read trials.
    """
    found = new_id(connection, TRIAL, values)
    if found is None or measurement is None:
        return found is not None
    connection.execute(_insert(connection, MEASUREMENT), {"trial_id": found, **measurement})
    median_us = measurement["median_us"] if values["status"] == Status.CORRECT else None
    if median_us is not None and (best_us is None or median_us < best_us):
        connection.execute(_BEST, {"of_task": values["task_id"], "median_us": median_us})
    return True


def selection(
    connection: Connection,
    values: dict[str, Any],
    baselines: list[dict[str, Any]],
    finals: list[dict[str, Any]],
) -> None:
    """Store a task's outcome and replace an earlier one."""
    statement = _insert(connection, SELECTION).values(**values)
    connection.execute(statement.on_conflict_do_update(index_elements=["task_id"], set_=values))
    for table, parts in ((BASELINE, baselines), (FINALIST, finals)):
        connection.execute(delete(table).where(table.c.task_id == values["task_id"]))
        if parts:
            connection.execute(_insert(connection, table), parts)


def _where(connection: Connection, device: Device, toolchain: Toolchain) -> dict[str, int]:
    return {
        "device_id": intern(connection, DEVICE, convert.device_values(device), "identity"),
        "toolchain_id": intern(connection, TOOLCHAIN, convert.toolchain_values(toolchain), "key"),
    }


def _insert(connection: Connection, table: Table) -> Any:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # its package imports every driver's dialect

        return postgresql.insert(table)
    return sqlite.insert(table)
