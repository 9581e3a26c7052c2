"""The lease check of a run: only the driver that holds the lease may write to the run.

A lease is a random token in the run's row. A driver that takes over the run replaces the token, so
the previous driver's token no longer matches. The check and the write are one transaction, which
locks the run's row until its end. A run without a driver has an empty lease.
"""

from __future__ import annotations

from sqlalchemy import Connection, Select, select

from results_db.errors import LeaseLostError, UnknownError
from results_db.models import Campaign, Run, Task

_FOUND = (
    select(Run.id, Run.lease, Run.status, Run.holder, Campaign.name, Task.best_us)
    .join(Campaign, Run.campaign_id == Campaign.id)
    .outerjoin(Task, Task.run_id == Run.id)
    .limit(1)
)


def run(connection: Connection, name: str, run_id: int, lease: str) -> None:
    """Raise `LeaseLostError` unless the run has this lease. name: the database's, for messages."""
    _pass(connection, name, _FOUND.where(Run.id == run_id), f"run {run_id}", lease)


def task(connection: Connection, name: str, task_id: int, lease: str) -> float | None:
    """Check the run of a task; returns the task's best time so far."""
    return _pass(connection, name, _FOUND.where(Task.id == task_id), f"task {task_id}", lease)


def unknown(name: str, what: str) -> UnknownError:
    return UnknownError(
        f"{name}: there is no {what}",
        "`tuner status --all` lists the runs, `tuner show RUN` the tasks of one",
    )


def _pass(
    connection: Connection,
    name: str,
    query: Select[int, str, str, str, str, float | None],
    what: str,
    lease: str,
) -> float | None:
    row = connection.execute(query.with_for_update(read=True, of=Run)).first()
    if row is None:
        raise unknown(name, what)
    run_id, held, status, holder, campaign, best_us = row
    if held != lease:
        now = f"held by {holder}" if holder else status
        raise LeaseLostError(
            f"{name}: run {run_id} of {campaign!r} is {now}; this process does not hold it",
            "nothing of this write was stored; `tuner status` shows where the run stands",
        )
    return best_us
