"""Ratios of times with intervals. All functions accept None, NaN and infinity."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.statistics import Verdict, verdict


def finite(value: float | None) -> float | None:
    """The value as a float if it is finite and not negative, else None."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return float(value)


@dataclass(frozen=True, slots=True)
class Ratio:
    """other time / own time with its 95 % interval; above 1 means faster."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of `search_spaces.statistics`; `undecided` without an interval."""
        if self.low is None or self.high is None:
            return "undecided"
        return verdict(*(-_log(value) for value in (self.value, self.high, self.low)))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def ratio_of(
    log_ratio: float | None,
    low: float | None,
    high: float | None,
    times: tuple[float | None, float | None] = (None, None),
) -> Ratio | None:
    """A ratio from ln(other / own) with its interval; else from (other, own), without interval."""
    if log_ratio is not None and abs(log_ratio) < 50:
        bounds = low, high
        if any(b is None or not abs(b) < 50 for b in bounds):
            return Ratio(math.exp(log_ratio))
        return Ratio(math.exp(log_ratio), *(math.exp(b) for b in bounds if b is not None))
    other, own = finite(times[0]), finite(times[1])
    if not other or not own or not math.isfinite(other / own) or not other / own:
        return None
    return Ratio(other / own)
