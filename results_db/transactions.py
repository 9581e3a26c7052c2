"""What every part of the store has: its database, its lease, and calls that are one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, update

from results_db import fence
from results_db.engine import Database
from results_db.models import Run, Task

T = TypeVar("T")


class Transactions:
    """A database as one process uses it. lease: the token its writes to a run must match."""

    def __init__(self, database: Database, lease: str = "") -> None:
        self._database = database
        self.lease = lease

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._database.read() as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
        with self._database.write() as connection:
            return work(connection)

    def _write_run(self, run_id: int, work: Callable[[Connection], T]) -> T:
        """The same behind the fence of a run."""

        def fenced(connection: Connection) -> T:
            fence.run(connection, self._database.name, run_id, self.lease)
            return work(connection)

        return self._write(fenced)

    def _write_task(self, task_id: int, work: Callable[[Connection], T]) -> T:
        """The same behind the fence of the run that a task belongs to."""

        def fenced(connection: Connection) -> T:
            fence.task(connection, self._database.name, task_id, self.lease)
            return work(connection)

        return self._write(fenced)

    def _change_run(self, run_id: int, values: dict[str, Any]) -> None:
        statement = update(Run).where(Run.id == run_id).values(**values)
        self._write_run(run_id, lambda connection: connection.execute(statement))

    def _change_task(self, task_id: int, values: dict[str, Any]) -> None:
        statement = update(Task).where(Task.id == task_id).values(**values)
        self._write_task(task_id, lambda connection: connection.execute(statement))
