"""A ratio of two times with its interval, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

#: Relative difference from which a verdict is `faster` or `slower`, and which bounds a tie set.
THRESHOLD = 0.01
#: How far an interval that contains zero may reach for its times to be called alike.
_ALIKE = 0.05
#: A ratio beyond e to this power is no ratio of two times.
_MOST = 50.0


class Verdict(StrEnum):
    """What an interval says about a time and its reference."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class LogRatio:
    """ln(a time / another) with its interval. An unknown end is infinite; the default is exact."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, value: float, low: float | None = None, high: float | None = None) -> LogRatio:
        """A ratio whose ends are None where unknown."""
        return cls(value, -math.inf if low is None else low, math.inf if high is None else high)

    def __neg__(self) -> LogRatio:
        return LogRatio(-self.value, -self.high, -self.low)

    def __sub__(self, other: LogRatio) -> LogRatio:
        """The ratio of two ratios; both intervals are added."""
        return LogRatio(self.value - other.value, self.low - other.high, self.high - other.low)

    @property
    def ratio(self) -> float:
        return math.exp(self.value)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the logarithm; None unless both are known."""
        known = abs(self.low) < _MOST and abs(self.high) < _MOST
        return (self.low, self.high) if known else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the ratio; None unless both are known."""
        return (math.exp(self.low), math.exp(self.high)) if self.ends else None

    @property
    def half_width(self) -> float:
        return self.high - self.value

    @property
    def doubt(self) -> str:
        """`?` behind the figure where the verdict is undecided, an unknown interval included."""
        return "?" if self.verdict() is Verdict.UNDECIDED else ""

    @property
    def alike(self) -> float:
        """How far an interval that contains zero reaches, as a share; 0 where that is over 5 %."""
        most = max(-self.low, self.high)
        return math.expm1(most) if self.low <= 0 <= self.high and most <= _ALIKE else 0.0

    def verdict(self, threshold: float = THRESHOLD) -> Verdict:
        """The verdict on the time.

        `same`: the whole interval is inside the threshold. `faster` and `slower`: the interval
        excludes zero and the estimate exceeds the threshold. Otherwise `undecided`.
        """
        margin = math.log1p(threshold)
        if -margin <= self.low and self.high <= margin:
            return Verdict.SAME
        if self.high < 0 and self.value <= -margin:
            return Verdict.FASTER
        if self.low > 0 and self.value >= margin:
            return Verdict.SLOWER
        return Verdict.UNDECIDED


def describe_same(within: float) -> str:
    """`same within 1.9 %`; `same` without a share."""
    return f"same within {100 * within:.1f} %" if within else "same"


#: The ratio of a time to itself.
EQUAL = LogRatio()


def split_ratio(ratio: LogRatio | None) -> tuple[float | None, float | None, float | None]:
    """The ratio itself and the ends of its interval; None where unknown."""
    return (ratio.ratio, *(ratio.interval or (None, None))) if ratio else (None, None, None)


def join_ratio(ratio: object, low: object = None, high: object = None) -> LogRatio | None:
    """The ratio that `split_ratio` took apart; None without one."""
    value, *ends = (
        math.log(each) if isinstance(each, float) and 0 < each < math.inf else None
        for each in (ratio, low, high)
    )
    return None if value is None else LogRatio.of(value, *ends)


def pick_ratio(
    measured: LogRatio | None, other_us: float | None = None, own_us: float | None = None
) -> LogRatio | None:
    """The measured ln(other / own); else from both times, without interval, or None."""
    if measured is not None and abs(measured.value) < _MOST:
        return measured
    times = [time for time in (other_us, own_us) if time is not None and 0 < time < math.inf]
    value = math.log(times[0]) - math.log(times[1]) if len(times) == 2 else math.inf
    return LogRatio.of(value) if abs(value) < _MOST else None
