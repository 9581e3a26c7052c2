"""Firings of schedules in the store: claims by hosts, and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select, update

from results_db import clock, insert
from results_db.convert import reader, values_of
from results_db.errors import StoreError
from results_db.stored_records import Fire, FireState
from results_db.tables import SCHEDULE_FIRE
from results_db.transactions import Transactions

#: A firing recorded this far in the future comes from a wrong clock. A clock that is set back by
#: less does not repeat a firing.
AHEAD = timedelta(days=1)


class FireStore(Transactions):
    """Firings of schedules. now: the time of the call, by default the database's; for tests."""

    def now(self) -> datetime:
        """The time by the database's clock, in UTC."""
        return self._read(_now)

    def claim_fire(
        self,
        schedule: str,
        instant: datetime,
        host: str,
        process: str = "",
        now: datetime | None = None,
    ) -> bool:
        """Claim a firing: True for exactly one of all hosts that try.

        A firing that a wrong clock recorded as missed can still be claimed.
        """

        def claim(connection: Connection) -> bool:
            time = now or _now(connection)
            fire = Fire(schedule, instant, FireState.STARTED, host, None, time, "", process)
            connection.execute(
                delete(SCHEDULE_FIRE).where(
                    SCHEDULE_FIRE.c.schedule == schedule,
                    SCHEDULE_FIRE.c.instant == instant,
                    SCHEDULE_FIRE.c.state == FireState.MISSED,
                    SCHEDULE_FIRE.c.fired_at > time + AHEAD,
                )
            )
            return insert.new_id(connection, SCHEDULE_FIRE, values_of(fire)) is not None

        return self._write(claim)

    def resume_fire(
        self, seen: Fire, host: str, process: str = "", now: datetime | None = None
    ) -> bool:
        """Claim an unfinished firing again; False if it has changed since it was read as `seen`."""
        values = {"state": FireState.STARTED, "host": host, "process": process}
        statement = (
            update(SCHEDULE_FIRE)
            .where(
                SCHEDULE_FIRE.c.schedule == seen.schedule,
                SCHEDULE_FIRE.c.instant == seen.instant,
                SCHEDULE_FIRE.c.state == seen.state,
                SCHEDULE_FIRE.c.attempts == seen.attempts,
            )
            .values(**values, attempts=seen.attempts + 1, fired_at=now or clock.now())
        )
        return self._write(lambda connection: bool(connection.execute(statement).rowcount))

    def finish_fire(
        self,
        schedule: str,
        instant: datetime,
        state: FireState,
        run_id: int | None = None,
        message: str = "",
    ) -> None:
        """Set the outcome of a claimed firing: `finished`, `failed` or `interrupted`."""
        statement = (
            update(SCHEDULE_FIRE)
            .where(SCHEDULE_FIRE.c.schedule == schedule, SCHEDULE_FIRE.c.instant == instant)
            .values(state=state, run_id=run_id, message=message)
        )
        if not self._write(lambda connection: connection.execute(statement).rowcount):
            raise StoreError(
                f"{self._database.name}: {schedule!r} has no firing at {instant}",
                "claim it first",
            )

    def record_missed(
        self, schedule: str, instants: Sequence[datetime], host: str, now: datetime | None = None
    ) -> None:
        """Record missed firings. Claimed firings are unchanged."""

        def note(connection: Connection) -> None:
            time = now or _now(connection)
            for instant in instants:
                fire = Fire(schedule, instant, FireState.MISSED, host, None, time)
                insert.new_id(connection, SCHEDULE_FIRE, values_of(fire))

        self._write(note)

    def last_fire(self, schedule: str, now: datetime | None = None) -> Fire | None:
        """The firing with the latest instant, missed ones included.

        now: ignore firings that a clock far ahead of that time recorded.
        """
        fire = SCHEDULE_FIRE.c
        query = select(SCHEDULE_FIRE).where(fire.schedule == schedule)
        if now is not None:
            query = query.where(fire.fired_at.is_(None) | (fire.fired_at <= now + AHEAD))
        latest = query.order_by(fire.instant.desc()).limit(1)
        return next(iter(self._read_all(latest, reader(Fire, SCHEDULE_FIRE))), None)

    def fires(self, schedule: str | None = None, limit: int = 50) -> list[Fire]:
        """Firings of one schedule or of all, latest instant first."""
        fire = SCHEDULE_FIRE.c
        query = select(SCHEDULE_FIRE).order_by(fire.instant.desc(), fire.id.desc()).limit(limit)
        if schedule is not None:
            query = query.where(fire.schedule == schedule)
        return self._read_all(query, reader(Fire, SCHEDULE_FIRE))


def _now(connection: Connection) -> datetime:
    return connection.execute(select(clock.now())).scalar_one()
