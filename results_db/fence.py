"""The lease check of a run: only the driver that holds the lease may write to the run.

A lease is a random token in the run's row. A driver that takes over the run replaces the token, so
the previous driver's token no longer matches. The check and the write are one transaction, which
locks the run's row until its end. A run without a driver has an empty lease.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, select

from results_db.errors import LeaseLostError, UnknownError
from results_db.tables import CAMPAIGN, RUN, TASK

_FOUND = (
    select(RUN.c.id, RUN.c.lease, RUN.c.status, RUN.c.holder, CAMPAIGN.c.name, TASK.c.best_us)
    .select_from(RUN.join(CAMPAIGN).outerjoin(TASK))
    .limit(1)
)


def run(connection: Connection, name: str, run_id: int, lease: str) -> None:
    """Raise `LeaseLostError` unless the run has this lease. name: the database's, for messages."""
    _pass(connection, name, _FOUND.where(RUN.c.id == run_id), f"run {run_id}", lease)


def task(connection: Connection, name: str, task_id: int, lease: str) -> float | None:
    """Check the run of a task; returns the task's best time so far."""
    return _pass(connection, name, _FOUND.where(TASK.c.id == task_id), f"task {task_id}", lease)


def unknown(name: str, what: str) -> UnknownError:
    return UnknownError(
        f"{name}: there is no {what}",
        "`tuner status --all` lists the runs, `tuner show RUN` the tasks of one",
    )


def _pass(
    connection: Connection,
    name: str,
    query: Select[Any],
    what: str,
    lease: str,
) -> float | None:
    row = connection.execute(query.with_for_update(read=True, of=RUN)).first()
    if row is None:
        raise unknown(name, what)
    run_id, held, status, holder, campaign = row[:5]
    if held != lease:
        now = f"held by {holder}" if holder else status
        raise LeaseLostError(
            f"{name}: run {run_id} of {campaign!r} is {now}; this process does not hold it",
            "nothing of this write was stored; `tuner status` shows where the run stands",
        )
    best_us: float | None = row.best_us
    return best_us
