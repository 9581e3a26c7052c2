"""Due firings as pure functions of the schedules, the recorded firings and the time.

A firing is identified by its instant in UTC. A local time that daylight saving skips moves to the
end of the gap, and is left out where the line fires every hour. A local time that it repeats fires
once, or twice where the hour field is a wildcard (as in Vixie cron).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from heapq import heappop, heappush
from itertools import dropwhile, islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo

from results_db.stored_records import NOTE
from search_spaces.errors import TunerError
from tuner.schedule.blackout import read_window
from tuner.settings.sections import Settings

#: How many missed firings are recorded, newest first.
MISSED_ON_RECORD = 100
#: Seconds within which a firing starts that nothing catches up: two ticks.
PROMPT_S = 120.0
#: How many firings are looked at for one outside all blackouts.
_LOOKED_AT = 20_000
#: The most by which clocks are put forward or back.
_LONGEST_SHIFT = timedelta(hours=3)
_ALIASES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


class ScheduleError(TunerError):
    """A schedule that cannot be used; `key` names the wrong field, `cron` or `timezone`."""

    def __init__(self, message: str, hint: str = "", key: str = "cron") -> None:
        super().__init__(message, hint)
        self.key = key


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a campaign."""

    name: str
    cron: str
    timezone: str = "UTC"
    #: Seconds after its instant within which a firing may still start.
    grace_s: float = 3600.0
    enabled: bool = True
    #: Windows of local time in which nothing starts, as `read_window` takes them.
    blackout: tuple[str, ...] = ()
    #: A firing starts later than its instant by less than this.
    jitter_s: float = 0.0
    #: Whether the newest missed firing starts within its grace.
    catch_up: Literal["newest", "none"] = "newest"

    def find_start(self, instant: datetime) -> datetime:
        """When a firing may start: its delay follows from name and instant, on every host."""
        drawn = sha256(f"{self.name} {instant.timestamp():.0f}".encode(errors="replace")).digest()
        share = int.from_bytes(drawn[:6]) / 2**48
        return instant + timedelta(microseconds=int(self.jitter_s * 1e6 * share))

    def is_dark(self, now: datetime) -> bool:
        """Whether nothing may start now."""
        local = now.astimezone(_zone(self.timezone)).replace(tzinfo=None)
        return any(read_window(text).covers(local) for text in self.blackout)


@dataclass(frozen=True, slots=True)
class Due:
    """The due firings of one schedule, in UTC."""

    schedule: str
    #: The firing to start; None when even the newest is past its grace.
    instant: datetime | None
    #: Older instants, oldest first, which are coalesced into `instant` or too late.
    missed: tuple[datetime, ...] = ()


def schedules(settings: Settings) -> list[Schedule]:
    """The schedules of all campaigns, by the campaign's name, and of the morning note."""
    morning = settings.notify.morning
    return [
        Schedule(
            name,
            plan.cron,
            plan.timezone,
            plan.grace,
            plan.enabled,
            tuple(plan.blackout),
            plan.jitter or 0.0,
            plan.catch_up,
        )
        for name, campaign in sorted(settings.campaigns.items())
        if (plan := campaign.schedule) is not None
    ] + ([Schedule(NOTE, morning, settings.notify.timezone)] if morning else [])


def check(cron: str, timezone: str = "UTC") -> None:
    """Raise `ScheduleError` unless the line has five fields, fires, and the zone exists."""
    from croniter import CroniterBadDateError, CroniterError

    fields = cron.split()
    if len(fields) != 5 and cron.strip().lower() not in _ALIASES:
        raise ScheduleError(
            f"{cron!r} has {len(fields)} fields; a cron line has five: "
            "minute hour day-of-month month day-of-week"
        )
    if any(field.lower().startswith(("r", "h")) for field in fields):
        raise ScheduleError(
            f"{cron!r}: `H` and `R` fields differ from host to host; write a number"
        )
    zone = _zone(timezone)
    try:
        next(_forward(cron, zone, datetime(2024, 1, 1, tzinfo=UTC)))
    except CroniterBadDateError:
        raise ScheduleError(f"{cron!r} never fires: no such date exists") from None
    except CroniterError as error:
        raise ScheduleError(f"{cron!r} is not a cron line: {error}") from None


def due(
    plans: Iterable[Schedule],
    last: Mapping[str, datetime],
    now: datetime,
    busy_since: datetime | None = None,
) -> list[Due]:
    """The firings to start and those to record as missed at `now`.

    last: the newest recorded instant of each schedule; a schedule without one looks back one grace
    period. A recorded instant is never due again, also when the clock steps back. busy_since:
    nothing could start from then until now, so no firing of that period is late.

    In a blackout nothing starts. What it keeps from starting is late without `catch_up`, and waits
    for its end otherwise.
    """
    result = []
    for plan in plans:
        dark, catches_up = plan.is_dark(now), plan.catch_up == "newest"
        if not plan.enabled or (dark and catches_up):
            continue
        grace = timedelta(seconds=plan.grace_s if catches_up else min(plan.grace_s, PROMPT_S))
        first = (busy_since or now) - grace
        instants = _list_ready(plan, now, last.get(plan.name), first)
        if not instants:
            continue
        newest, *older = instants
        start = plan.find_start(newest)
        late = now - start > grace and (busy_since is None or start < busy_since)
        late = late or (not catches_up and (dark or plan.is_dark(start)))
        missed = instants if late else older
        result.append(Due(plan.name, None if late else newest, tuple(reversed(missed))))
    return result


def _list_ready(
    plan: Schedule, now: datetime, last: datetime | None, first: datetime
) -> list[datetime]:
    """The unrecorded instants up to the newest that may start at `now`, newest first.

    first: where nothing is recorded, the earliest start.
    """
    after = last or first - timedelta(seconds=plan.jitter_s)
    window = _backward(plan.cron, _zone(plan.timezone), now, after)
    ready: Iterator[datetime] = dropwhile(lambda each: plan.find_start(each) > now, window)
    if last is None:
        ready = takewhile(lambda each: plan.find_start(each) > first, ready)
    return list(islice(ready, MISSED_ON_RECORD + 1))


def next_fires(plan: Schedule, now: datetime, count: int = 1) -> list[datetime]:
    """The next instants of a schedule after `now`, in UTC; none when it is disabled.

    Firings that would start in a blackout are left out.
    """
    if not plan.enabled:
        return []
    ahead = _forward(plan.cron, _zone(plan.timezone), now)
    if plan.blackout:
        near = islice(ahead, _LOOKED_AT)
        ahead = (each for each in near if not plan.is_dark(plan.find_start(each)))
    return list(islice(ahead, count))


def _forward(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    return (each for each in _walk(cron, zone, after) if each > after)


def _backward(cron: str, zone: ZoneInfo, upto: datetime, after: datetime) -> Iterator[datetime]:
    """Instants in (after, upto], newest first."""
    past = (each for each in _walk(cron, zone, upto, back=True) if each <= upto)
    return takewhile(lambda each: each > after, past)


def _walk(cron: str, zone: ZoneInfo, start: datetime, *, back: bool = False) -> Iterator[datetime]:
    """The instants of a line in UTC in order, from somewhat before `start` on; `back`: newest
    first, from somewhat after it.

    The line names local times. A repeated one may be two instants, the second of which comes after
    the first of later local times.
    """
    from croniter import croniter

    sign, shift = (-1, _LONGEST_SHIFT) if back else (1, -_LONGEST_SHIFT)
    fields = cron.split()
    hours = fields[1] if len(fields) == 5 else "*" if "hourly" in cron.lower() else "0"
    walk = croniter(cron, start.astimezone(zone).replace(tzinfo=None) + shift)
    waiting: list[float] = []
    last = None
    while True:
        local = walk.get_prev(datetime) if back else walk.get_next(datetime)
        ends = [local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
        for instant in _list_instants(zone, ends, hours):
            heappush(waiting, sign * instant)
        # What follows is not before the first of both, nor, backwards, after the last.
        while waiting and waiting[0] <= min(sign * end for end in ends):
            instant = heappop(waiting)
            if instant != last:
                yield datetime.fromtimestamp(sign * instant, UTC)
            last = instant


def _list_instants(zone: ZoneInfo, ends: list[float], hours: str) -> list[float]:
    """The instants at which a local time fires.

    ends: as its first and its second pass. hours: the field of the line.
    """
    first, second = ends
    if first <= second:
        return ends if first < second and hours.startswith("*") else [first]
    if hours in ("*", "*/1"):
        return []

    def is_over(at: int) -> bool:
        """Whether the gap, in which the local time is, is over."""
        return datetime.fromtimestamp(at, zone).utcoffset() == later

    later = datetime.fromtimestamp(first, zone).utcoffset()
    inside = range(round(second), round(first) + 1)
    return [inside[bisect_left(inside, True, key=is_over)]]


def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (ValueError, OSError, KeyError):
        raise ScheduleError(
            f"unknown time zone {timezone!r}",
            "use a name of the IANA database, such as UTC or Europe/Berlin",
            key="timezone",
        ) from None
