"""The statistics of times: paired ratios with intervals, verdicts, tie sets, summaries.

Notation: a[i] and b[i] are times of pass i in one unit, d[i] = ln a[i] - ln b[i] their log-ratios,
n their number. A negative log-ratio means that a is faster.

- Estimate: the 10 % trimmed mean of d. With g = floor(n / 10), it omits the g smallest and the g
  largest values.
- Standard error: s_w / ((1 - 2 g / n) sqrt(n)), where s_w is the standard deviation of d with the g
  values at either end replaced by their nearest neighbour (Winsorised): Yuen, Biometrika 61, 1974.
- Interval: Student's t with n - 2 g - 1 degrees of freedom.
- Clock resolution: rounding to a quantum q has the variance q^2 / 12 per time, so
  q^2 / 12 (mean of a^-2 + mean of b^-2) is a lower bound for s_w^2.

The estimate is a mean because the median of times that are multiples of q is off by up to q / 2.
Every summary statistic of the project is defined here; `statistics` of the standard library has the
plain mean, median and quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tuner.base.log_ratio import EQUAL, THRESHOLD, LogRatio

__all__ = [
    "TRIM",
    "TieSet",
    "finite_times",
    "geometric_mean",
    "median_interval",
    "compare_pairs",
    "relative_iqr",
    "tie_set",
    "trimmed_mean",
]

Floats: TypeAlias = npt.NDArray[np.float64]

#: Share of the values that a trimmed mean omits at either end.
TRIM = 0.1
_CONFIDENCE = 0.95
_FEWEST_FOR_INTERVAL = 6
_FEWEST_FOR_IQR = 4


@dataclass(frozen=True, slots=True)
class TieSet:
    """The winner of a comparison and the candidates that cannot be distinguished from it."""

    winner: str
    #: The winner, then all candidates within the threshold of it or among the `equals`.
    members: tuple[str, ...]
    #: The winner, then the candidates whose interval reaches its time.
    equals: tuple[str, ...]
    #: The log-ratio of every candidate to the winner.
    ratios: Mapping[str, LogRatio]


# -- comparison of two -----------------------------------------------------------------------------
def trimmed_mean(values: Sequence[float] | Floats, trim: float = TRIM) -> float:
    """Mean without the `trim` share of the values at either end."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(trim * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def compare_pairs(
    samples_a: Sequence[float] | Floats,
    samples_b: Sequence[float] | Floats,
    *,
    confidence: float = _CONFIDENCE,
    quantum_us: float = 0.0,
) -> LogRatio:
    """ln(a / b) from samples whose equal positions are pairs, with a two-sided t interval.

    samples: positive times in us, equally many, at least one; the interval of one pair is infinite.
    quantum_us: resolution of the clock, which keeps the interval from collapsing when all samples
    are one multiple of it. Raises `ValueError` for samples that are not pairs.
    """
    if len(samples_a) != len(samples_b) or len(samples_a) == 0:
        raise ValueError(f"{len(samples_a)} and {len(samples_b)} samples are not pairs")
    a, b = np.asarray(samples_a, dtype=np.float64), np.asarray(samples_b, dtype=np.float64)
    if not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError("times must be positive")
    log_ratios = np.log(a) - np.log(b)
    rounding = quantum_us**2 / 12 * float(np.mean(a) ** -2 + np.mean(b) ** -2)
    return _interval(log_ratios, confidence, rounding)


# -- comparison of many ----------------------------------------------------------------------------
def tie_set(times: Mapping[str, Sequence[float]], looks: int = 1) -> TieSet:
    """The winner of one interleaved comparison and the candidates that tie with it.

    times: samples by name; equal positions are of one pass. A dropped candidate has fewer samples
    and cannot win. A candidate is an equal if it was not dropped and its interval (simultaneous
    over all candidates at 95 %) reaches the winner's time; a member if it is an equal or its
    estimate is within `THRESHOLD`. looks: how often the samples were inspected in order to stop;
    intervals hold simultaneously over these, too. Raises `ValueError` where a candidate has no
    samples.
    """
    if not times or not all(times.values()):
        raise ValueError("a tie set needs samples of at least one candidate")
    longest = max(len(samples) for samples in times.values())
    logs = {
        name: np.log(np.asarray(samples, dtype=np.float64))
        for name, samples in times.items()
        if len(samples) == longest
    }
    # Drift is common to a pass and does not distinguish its candidates.
    pass_means = np.mean(list(logs.values()), axis=0)
    winner = min(logs, key=lambda name: trimmed_mean(logs[name] - pass_means))
    confidence = 1 - (1 - _CONFIDENCE) / (looks * max(1, len(times) - 1))
    ratios = {
        name: EQUAL
        if name == winner
        else compare_pairs(samples, times[winner][: len(samples)], confidence=confidence)
        for name, samples in times.items()
    }
    margin = math.log1p(THRESHOLD)
    # A dropped candidate has been distinguished; the interval of its few samples may be too wide to
    # show it.
    equals = [name for name in logs if name != winner and ratios[name].low <= 0]
    members = [
        name
        for name, ratio in ratios.items()
        if name != winner and (name in equals or ratio.value <= margin)
    ]
    for names in (equals, members):
        names.sort(key=lambda name: ratios[name].value)
    return TieSet(winner, (winner, *members), (winner, *equals), ratios)


# -- summaries of one sample -----------------------------------------------------------------------
def finite_times(values: Iterable[float | None]) -> list[float]:
    """The values that are times: finite and not negative, in order."""
    return [
        float(value)
        for value in values
        if value is not None and math.isfinite(value) and value >= 0
    ]


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean of the positive finite values; None without any."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % order-statistic interval of the median, by exact binomial ranks.

    None with fewer than 6 usable samples, which no such interval covers.
    """
    ordered = sorted(finite_times(samples))
    n = len(ordered)
    if n < _FEWEST_FOR_INTERVAL:
        return None
    # tail / 2^n is the probability that at most `lower` of n samples are below the median.
    lower, ways, tail = 0, 1, 1
    while True:
        ways = ways * (n - lower) // (lower + 1)
        if (tail + ways) * 40 > 2**n:
            return ordered[lower], ordered[n - 1 - lower]
        lower, tail = lower + 1, tail + ways


def relative_iqr(samples: Sequence[float]) -> float | None:
    """Inter-quartile range over median; None with fewer than 4 samples or a median of zero."""
    values = finite_times(samples)
    middle = median(values) if values else 0.0
    if len(values) < _FEWEST_FOR_IQR or middle <= 0:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def _interval(log_ratios: Floats, confidence: float, rounding: float) -> LogRatio:
    """The estimate and its interval; `rounding` is the least variance."""
    n = len(log_ratios)
    from scipy.special import stdtrit  # takes longer to import than numpy

    ordered = np.sort(log_ratios)
    cut = int(TRIM * n)
    kept = n - 2 * cut
    centre = float(ordered[cut : n - cut].mean())
    if n == 1:
        return LogRatio.of(centre)
    winsorised = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    variance = max(float(winsorised.var(ddof=1)), rounding)
    error = math.sqrt(variance) / (kept / n * math.sqrt(n))
    half = float(stdtrit(kept - 1, 0.5 + confidence / 2)) * error
    return LogRatio(centre, centre - half, centre + half)
