"""Steps in a series of log times: where the level of the newest points left that of those before.

The change-point model of Hawkins, Qiu and Kang (Journal of Quality Technology 35, 2003): at each
new point, the newest k points are compared with all before them back to the last step, for each
small k, by Student's t. Its variance is moderated as by Smyth (Statistical Applications in
Genetics and Molecular Biology 3, 2004), since a series is short: var(y[i]) = f (b^2 + e[i]^2),
where e[i] is the standard error of a point, b the usual noise between runs, and the unknown factor
f is estimated from the points and from a prior of mean 1 that counts as `_PRIOR` degrees of
freedom. One point never makes a step, whatever its value: an outlier would. A smaller step needs
three points on either side that agree by their medians, which one outlier does not move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from tuner.base.log_ratio import THRESHOLD, LogRatio

#: The standard deviation of ln(winner / default) between runs that nothing distinguishes, by kind
#: of device: ratios of an H200 varied by 0.34 % (G10 in docs/measurement_evidence.md), those of
#: shared processors by percents.
_BETWEEN_RUNS = {"cpu": 0.02}
_BETWEEN_GPU_RUNS = 0.003
_PRIOR = 8.0
#: The least number of points on either side of a step.
_FEWEST = 2
#: Most points behind a step, and before it.
_NEWEST, _OLDER = 8, 40
#: The probability with which one comparison finds a step where there is none. Each point makes up
#: to seven of them, and the factor of a noisy series is known from few points.
_ALPHA = 1e-5
#: The same where this many points on either side differ by their medians, and by how much.
_ALPHA_AGREED, _AGREED, _APART = 1e-3, 3, 0.025
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series: a log time, and the standard error of its measurement."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A change of level. Positive is slower."""

    #: The index of the first point behind it.
    at: int
    #: The index of the point at which it was found.
    found_at: int
    #: The level behind it minus the level before it, with its 95 % interval.
    change: LogRatio


def between_runs(kind: str) -> float:
    """The usual standard deviation of a log ratio between runs on a kind of device."""
    return _BETWEEN_RUNS.get(kind, _BETWEEN_GPU_RUNS)


def detect_steps(points: Sequence[Point], noise: float) -> list[Step]:
    """The steps of a series in its order, as they were found point by point.

    noise: the usual standard deviation between equal runs. Only steps of more than 1 % count.
    """
    found: list[Step] = []
    start = 0
    for end in range(1, len(points) + 1):
        step = _test_newest(points, start, end, noise)
        if step is not None:
            found.append(step)
            start = step.at
    return found


def _test_newest(points: Sequence[Point], start: int, end: int, noise: float) -> Step | None:
    """The clearest step whose newest side ends at `end`; None where none is clear."""
    clearest: tuple[float, Step] | None = None
    for at in range(max(start + _FEWEST, end - _NEWEST), end - _FEWEST + 1):
        before, behind = points[max(start, at - _OLDER) : at], points[at:end]
        change, error, freedom = _compare(before, behind, noise)
        alpha = _ALPHA_AGREED if _agree(before, behind) else _ALPHA
        least = _quantile(freedom, 1 - alpha / 2)
        clear = abs(change) / (error * least)
        if clear > 1 and abs(change) > math.log1p(THRESHOLD):
            half = error * _quantile(freedom, 0.5 + _CONFIDENCE / 2)
            step = Step(at, end - 1, LogRatio(change, change - half, change + half))
            if clearest is None or clear > clearest[0]:
                clearest = clear, step
    return clearest[1] if clearest else None


def _agree(before: Sequence[Point], behind: Sequence[Point]) -> bool:
    """Whether points differ by their medians, with most of the newest ones beyond half of that."""
    if min(len(before), len(behind)) < _AGREED:
        return False
    levels = [median(point.value for point in side) for side in (before, behind)]
    change, middle = levels[1] - levels[0], sum(levels) / 2
    beyond = sum((point.value - middle) * change > 0 for point in behind[-_AGREED:])
    return abs(change) > _APART and beyond > _AGREED / 2


def _compare(
    before: Sequence[Point], behind: Sequence[Point], noise: float
) -> tuple[float, float, int]:
    """The difference of two levels, its standard error, and the degrees of freedom."""
    sides = [_find_level(side, noise) for side in (before, behind)]
    freedom = len(before) + len(behind) - 2
    factor = (_PRIOR + sum(spread for _, _, spread in sides)) / (_PRIOR + freedom)
    error = math.sqrt(factor * sum(1 / weight for _, weight, _ in sides))
    return sides[1][0] - sides[0][0], error, int(_PRIOR) + freedom


def _find_level(points: Sequence[Point], noise: float) -> tuple[float, float, float]:
    """The weighted mean of points, the sum of weights, and the weighted squares around the mean."""
    weights = [1 / (noise**2 + point.error**2) for point in points]
    total = math.fsum(weights)
    mean = math.fsum(w * point.value for w, point in zip(weights, points, strict=True)) / total
    squares = (w * (p.value - mean) ** 2 for w, p in zip(weights, points, strict=True))
    return mean, total, math.fsum(squares)


@lru_cache(maxsize=256)
def _quantile(freedom: int, probability: float) -> float:
    """The quantile of Student's t."""
    from scipy.special import stdtrit  # takes longer to import than numpy

    return float(stdtrit(freedom, probability))
