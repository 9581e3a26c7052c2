"""The base of the store: a database, a lease, and calls that are one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, update

from results_db import fence
from results_db.connections import Database
from results_db.patience import Patience
from results_db.tables import RUN, TASK

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
            fence.run(connection, self._database.name, run_id, self.lease)
            return work(connection)

        return self._write(run_fenced)

    def _write_task(self, task_id: int, work: Callable[[Connection], T]) -> T:
        """A write that checks the lease of a task's run."""

        def run_fenced(connection: Connection) -> T:
            fence.task(connection, self._database.name, task_id, self.lease)
            return work(connection)

        return self._write(run_fenced)

    def _change_run(self, run_id: int, values: dict[str, Any]) -> None:
        statement = update(RUN).where(RUN.c.id == run_id).values(**values)
        self._write_run(run_id, lambda connection: connection.execute(statement))

    def _change_task(self, task_id: int, values: dict[str, Any]) -> None:
        statement = update(TASK).where(TASK.c.id == task_id).values(**values)
        self._write_task(task_id, lambda connection: connection.execute(statement))
