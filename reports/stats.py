"""The few statistics a report needs, safe against None, NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles


def finite(value: float | None) -> float | None:
    """The value as a positive or zero finite float, else None: a time that can be used."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def usable(values: Iterable[float | None]) -> list[float]:
    """The finite non-negative values, in order."""
    return [number for number in map(finite, values) if number is not None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster: a ratio with its 95 % interval, None where unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """`faster` or `slower` when the interval excludes 1 and the effect is 1 % or more, `same`
        when the whole interval is within 1 %, else `undecided`."""
        if self.low is None or self.high is None:
            return "undecided"
        if self.low > 1 and self.value >= 1.01:
            return "faster"
        if self.high < 1 and self.value <= 0.99:
            return "slower"
        return "same" if self.low >= 0.99 and self.high <= 1.01 else "undecided"


def ratio_of(
    log_ratio: float | None,
    low: float | None,
    high: float | None,
    times: tuple[float | None, float | None] = (None, None),
) -> Ratio | None:
    """A ratio from natural logarithms; else, without an interval, from (other, own) times."""
    if log_ratio is not None and abs(log_ratio) < 50:
        bounds = low, high
        if any(b is None or not abs(b) < 50 for b in bounds):
            return Ratio(math.exp(log_ratio))
        return Ratio(math.exp(log_ratio), *(math.exp(b) for b in bounds if b is not None))
    other, own = finite(times[0]), finite(times[1])
    if not other or not own or not math.isfinite(other / own) or not other / own:
        return None
    return Ratio(other / own)


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean of positive values; None of none."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % order-statistic interval of the median, by exact binomial ranks; None under 6."""
    ordered = sorted(usable(samples))
    n = len(ordered)
    if n < 6:
        return None
    lower, ways, tail = 0, 1, 1
    while True:
        ways = ways * (n - lower) // (lower + 1)
        if (tail + ways) * 40 > 2**n:
            return ordered[lower], ordered[n - 1 - lower]
        lower, tail = lower + 1, tail + ways


def relative_iqr(samples: Sequence[float]) -> float | None:
    """Inter-quartile range over median; None under 4 samples or for a median of zero."""
    values = usable(samples)
    middle = median(values) if values else 0.0
    if len(values) < 4 or middle <= 0:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
