"""Windows of local time in which no firing starts.

`Fri 18:00..Mon 06:00` comes every week, `08:00..18:00` every day, and `2026-12-24..2026-12-26` or
`2026-12-24 12:00..2026-12-26 08:00` once. Without a time, a first day counts from its beginning and
a last one to its end. A window is what a clock on the wall shows, so an hour that daylight saving
repeats is inside both times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SIDE = re.compile(
    rf"(?:(?P<date>\d{{4}}-\d\d-\d\d)|(?P<day>{'|'.join(_DAYS)}))?(?:(?:^|\s+)(?P<time>\d?\d:\d\d))?",
    re.ASCII,
)
#: A Monday.
_ORIGIN = datetime(1, 1, 1)
_DAY, _WEEK = timedelta(days=1), timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class Window:
    """A window, again after each `period`."""

    #: From the beginning of year 1 to its own.
    start: timedelta
    length: timedelta
    period: timedelta | None

    def covers(self, local: datetime) -> bool:
        """Whether a local time, without its time zone, is inside."""
        since = local - _ORIGIN - self.start
        return timedelta(0) <= (since % self.period if self.period else since) < self.length


@lru_cache(256)
def read_window(text: str) -> Window:
    """The window that a text describes. Raises `ValueError`."""
    first, dots, last = text.partition("..")
    if not dots:
        raise ValueError(f"{text!r} is no window; write Fri 18:00..Mon 06:00 or two dates")
    start, period, _ = _read_side(first)
    end, other, whole = _read_side(last)
    if period != other:
        raise ValueError(f"{text!r} mixes dates, days of the week and times alone")
    length = end + (_DAY if whole else timedelta(0)) - start
    if period:
        length %= period
    if length <= timedelta(0):
        raise ValueError(f"{text!r} ends where or before it begins")
    return Window(start, length, period)


def find_next(text: str, after: datetime) -> datetime:
    """When a day, date or time is next, or a day ends; a date also where it is over. Of local times
    without their time zone. Raises `ValueError`."""
    offset, period, whole = _read_side(text)
    at = _ORIGIN + offset + (_DAY if whole else timedelta(0))
    return at if period is None else after + period - (after - at) % period


def _read_side(text: str) -> tuple[timedelta, timedelta | None, bool]:
    """Where a side is, after what it comes again, and whether it is a whole day."""
    found = _SIDE.fullmatch(text.strip().lower())
    if found is None or not found[0]:
        raise ValueError(f"{text.strip()!r} is no day, date or time; write Fri 18:00 or 2026-12-24")
    hour, minute = map(int, (found["time"] or "0:00").split(":"))
    time = timedelta(hours=hour, minutes=minute)
    if minute > 59 or time > _DAY:
        raise ValueError(f"{found['time']} is no time of day")
    if found["date"]:
        return datetime.fromisoformat(found["date"]) - _ORIGIN + time, None, not found["time"]
    if found["day"]:
        return _DAY * _DAYS.index(found["day"]) + time, _WEEK, not found["time"]
    return time, _DAY, False
