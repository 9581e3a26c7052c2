"""The base of the store: a database, a lease, and calls that are one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, select, update

from results_db.connections import Database
from results_db.errors import LeaseLostError, UnknownError
from results_db.patience import Patience
from results_db.tables import CAMPAIGN, RUN, TASK

# -- the lease check of a run: only the driver that holds the lease may write to the run -----------
# A lease is a random token in the run's row. A driver that takes over the run replaces the token,
# so the previous driver's token no longer matches. The check and the write are one transaction,
# which locks the run's row until its end. A run without a driver has an empty lease.
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


# -- the base of the store -------------------------------------------------------------------------
T = TypeVar("T")
_AT_ONCE = Patience()


class Transactions:
    """A database as one process uses it.

    lease: the token that a run must have for writes to it. patience: how long a call waits during
    an outage.
    """

    def __init__(self, database: Database, lease: str = "", patience: Patience = _AT_ONCE) -> None:
        self._database = database
        self.lease = lease
        self.patience = patience

    def _read(self, work: Callable[[Connection], T]) -> T:
        def once() -> T:
            with self._database.read() as connection:
                return work(connection)

        return self.patience.insist(once)

    def _read_all(self, query: Select[Any], to_record: Callable[[Row[Any]], T]) -> list[T]:
        """The records of all rows that a query finds."""
        return self._read(lambda each: [to_record(row) for row in each.execute(query)])

    def _write(self, work: Callable[[Connection], T]) -> T:
        """One transaction. It is repeated if its commit is uncertain."""

        def once() -> T:
            with self._database.write() as connection:
                return work(connection)

        return self.patience.insist(once)

    def check_place(self) -> None:
        """Raise `StoreMovedError` if an SQLite file was deleted or replaced while in use."""
        self._database.check_place()

    def rescue(self) -> Path | None:
        """Copy a deleted SQLite file to a new file in its folder; returns the path."""
        return self._database.rescue()

    def _write_run(self, run_id: int, work: Callable[[Connection], T]) -> T:
        """A write that checks the lease of a run."""

        def run_fenced(connection: Connection) -> T:
            run(connection, self._database.name, run_id, self.lease)
            return work(connection)

        return self._write(run_fenced)

    def _write_task(self, task_id: int, work: Callable[[Connection], T]) -> T:
        """A write that checks the lease of a task's run."""

        def run_fenced(connection: Connection) -> T:
            task(connection, self._database.name, task_id, self.lease)
            return work(connection)

        return self._write(run_fenced)

    def _change_run(self, run_id: int, values: dict[str, Any]) -> None:
        statement = update(RUN).where(RUN.c.id == run_id).values(**values)
        self._write_run(run_id, lambda connection: connection.execute(statement))

    def _change_task(self, task_id: int, values: dict[str, Any]) -> None:
        statement = update(TASK).where(TASK.c.id == task_id).values(**values)
        self._write_task(task_id, lambda connection: connection.execute(statement))
