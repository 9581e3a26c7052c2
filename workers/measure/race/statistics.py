"""Paired comparison of times: trimmed log-ratios, intervals, verdicts and tie sets.

A log-ratio is ln(time / reference time): negative means faster. The estimator is the 10 % trimmed
mean of the paired log-ratios, its standard error the Winsorised one of Yuen (Biometrika 61, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]
Floats: TypeAlias = npt.NDArray[np.float64]

TRIM = 0.1
THRESHOLD = 0.01


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """ln(time a / time b) over `n` pairs with its confidence interval."""

    log_ratio: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class TieSet:
    """The winner of a race, all that cannot be told from it within the threshold (winner first),
    those of them that cannot be told from it at all, and log-ratios to it."""

    winner: str
    members: tuple[str, ...]
    equals: tuple[str, ...]
    ratios: Mapping[str, PairedRatio]


def trimmed_mean(values: Sequence[float] | Floats, trim: float = TRIM) -> float:
    """Mean without the `trim` share of the values at either end."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(trim * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def paired(
    samples_a: Sequence[float] | Floats,
    samples_b: Sequence[float] | Floats,
    *,
    confidence: float = 0.95,
    quantum_us: float = 0.0,
) -> PairedRatio:
    """ln(a / b) from samples whose equal positions are pairs, with a two-sided t interval.

    samples: positive times in one unit, equally many, at least one; of one pair the interval is
    infinite. quantum_us: the clock's step, whose rounding keeps the interval from collapsing when
    all samples fall on one tick. Raises `ValueError` for samples that are not pairs.
    """
    if len(samples_a) != len(samples_b) or len(samples_a) == 0:
        raise ValueError(f"{len(samples_a)} and {len(samples_b)} samples are not pairs")
    a, b = np.asarray(samples_a, dtype=np.float64), np.asarray(samples_b, dtype=np.float64)
    if not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError("times must be positive")
    differences = np.log(a) - np.log(b)
    rounding = quantum_us**2 / 12 * float(np.mean(a) ** -2 + np.mean(b) ** -2)
    return _interval(differences, confidence, rounding)


def verdict(log_ratio: float, low: float, high: float, threshold: float = THRESHOLD) -> Verdict:
    """What an interval of ln(time / reference) says of the time.

    `same`: the whole interval is inside the threshold. `faster` and `slower`: the interval excludes
    zero and the estimate exceeds the threshold. Otherwise `undecided`.
    """
    margin = math.log1p(threshold)
    if -margin <= low and high <= margin:
        return "same"
    if high < 0 and log_ratio <= -margin:
        return "faster"
    if low > 0 and log_ratio >= margin:
        return "slower"
    return "undecided"


def tie_set(
    times: Mapping[str, Sequence[float]], threshold: float = THRESHOLD, looks: int = 1
) -> TieSet:
    """The winner of one interleaved pass and what cannot be told from it.

    times: samples by name, equal positions measured in one round; who was dropped has fewer, and
    cannot win. A member is within the threshold of the winner, or stayed to the end and its
    interval (simultaneous over the field at 95 %) reaches the winner's time; an equal's does.
    looks: how often the samples were looked at in order to stop, over which the intervals hold
    together as well. Raises `ValueError` for an empty field.
    """
    if not times or not all(times.values()):
        raise ValueError("a tie set needs samples of at least one candidate")
    whole = max(len(samples) for samples in times.values())
    logs = {
        name: np.log(np.asarray(samples, dtype=np.float64))
        for name, samples in times.items()
        if len(samples) == whole
    }
    # What a whole round shares (drift) says nothing of its candidates.
    shared = np.mean(list(logs.values()), axis=0)
    winner = min(logs, key=lambda name: trimmed_mean(logs[name] - shared))
    confidence = 1 - 0.05 / (looks * max(1, len(times) - 1))
    ratios = {
        name: PairedRatio(0.0, 0.0, 0.0, len(samples))
        if name == winner
        else paired(samples, times[winner][: len(samples)], confidence=confidence)
        for name, samples in times.items()
    }
    margin = math.log1p(threshold)
    # Who was dropped has been told apart; by its few samples alone it might seem not to be.
    equals = [name for name in logs if name != winner and ratios[name].low <= 0]
    members = [
        name
        for name, ratio in ratios.items()
        if name != winner and (name in equals or ratio.log_ratio <= margin)
    ]
    for names in (equals, members):
        names.sort(key=lambda name: ratios[name].log_ratio)
    return TieSet(winner, (winner, *members), (winner, *equals), ratios)


def _interval(differences: Floats, confidence: float, rounding: float) -> PairedRatio:
    count = len(differences)
    ordered = np.sort(differences)
    cut = int(TRIM * count)
    kept = count - 2 * cut
    centre = float(ordered[cut : count - cut].mean())
    if count == 1:
        return PairedRatio(centre, -math.inf, math.inf, 1)
    winsorised = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
    variance = max(float(winsorised.var(ddof=1)), rounding)
    error = math.sqrt(variance) / (kept / count * math.sqrt(count))
    half = float(special.stdtrit(kept - 1, 0.5 + confidence / 2)) * error
    return PairedRatio(centre, centre - half, centre + half, count)
