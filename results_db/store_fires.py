"""The part of the store about schedules: which firing was taken by which host, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, update

from results_db import convert, insert, query
from results_db.errors import StoreError
from results_db.models import ScheduleFire
from results_db.records import Fire
from results_db.transactions import Transactions


class FireStore(Transactions):
    """Firings of schedules."""

    def claim_fire(self, schedule: str, instant: datetime, host: str) -> bool:
        """Take a firing upon oneself: True for exactly one of all hosts that ask."""
        values = convert.fire_values(schedule, instant, host, "started")
        return self._write(lambda each: insert.new_id(each, ScheduleFire, values) is not None)

    def finish_fire(
        self,
        schedule: str,
        instant: datetime,
        state: str,
        run_id: int | None = None,
        message: str = "",
    ) -> None:
        """End a claimed firing as `finished` or `failed`."""
        statement = (
            update(ScheduleFire)
            .where(ScheduleFire.schedule == schedule, ScheduleFire.instant == instant)
            .values(state=state, run_id=run_id, message=message)
        )
        if not self._write(lambda connection: connection.execute(statement).rowcount):
            raise StoreError(
                f"{self._database.name}: {schedule!r} has no firing at {instant}",
                "claim it first",
            )

    def record_missed(self, schedule: str, instants: Sequence[datetime], host: str) -> None:
        """Note firings that were let pass; those already claimed stay as they are."""
        rows = [convert.fire_values(schedule, instant, host, "missed") for instant in instants]

        def note(connection: Connection) -> None:
            for values in rows:
                insert.new_id(connection, ScheduleFire, values)

        self._write(note)

    def last_fire(self, schedule: str) -> Fire | None:
        """The firing with the latest instant, missed ones included."""
        found = self.fires(schedule, limit=1)
        return found[0] if found else None

    def fires(self, schedule: str | None = None, limit: int = 50) -> list[Fire]:
        """Firings, of one schedule or of all, the latest instant first."""
        return self._read(lambda connection: query.fires(connection, schedule, limit))
