"""C1 (noise-scenarios), C2 (identical-under-drift), C6 (interval-coverage): simulated noise.

The truth is known in every simulation. Each check is deterministic: it prints the same figures in
every run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product

import numpy as np
from scipy import stats

from acceptance import simulated_worlds
from tuner.base.statistics import TRIM, compare_pairs, median_interval, trimmed_mean

#: C2: clock drift, as its standard deviation and its correlation time in seconds.
DRIFTS = ((0.015, 2.0), (0.015, 0.2))
#: Noise of one sample of a 50 us kernel, as in W1 (usual noise), and samples per side.
_SIGMA, _US, _PAIRS, _WINDOW = 0.01, 50.0, 200, 200
#: Seconds between samples: the kernel, and a harness that flushes 256 MiB before it.
_STEP_S = 200e-6
#: C6: numbers of pairs per interval, and the confidence levels that the farm uses.
COUNTS = (9, 24, 64, 400)
CONFIDENCES = (0.95, 0.99)
#: The tick of a coarse clock as a share of the time; deliberately too coarse for real timing.
QUANTUM = 0.2

Samples = Callable[[np.random.Generator, tuple[int, ...]], "np.ndarray"]


# -- C1 --------------------------------------------------------------------------------------------
def scenarios(seeds: int, configs: int, processes: int) -> dict[str, dict[str, object]]:
    """Selection in the six noise scenarios through the real engine, by scenario."""
    jobs = [(w, seed, configs) for w in simulated_worlds.NOISY for seed in range(seeds)]
    runs_by_scenario: dict[str, list] = {name: [] for name in simulated_worlds.NOISY}
    with ProcessPoolExecutor(processes) as executor:
        for name, run in executor.map(simulated_worlds.tune_job, jobs, chunksize=2):
            runs_by_scenario[name].append(run)
    return {w: simulated_worlds.summary(w, runs, configs) for w, runs in runs_by_scenario.items()}


# -- C2 --------------------------------------------------------------------------------------------
def wander(rng: np.random.Generator, count: int, sd: float, tau_s: float) -> np.ndarray:
    """ln of the clock's rate at each sample: a stationary Ornstein-Uhlenbeck process."""
    keep = math.exp(-_STEP_S / tau_s)
    shocks = rng.normal(0, sd * math.sqrt(1 - keep**2), count)
    values, now = np.empty(count), rng.normal(0, sd)
    for index in range(count):
        values[index] = now
        now = keep * now + shocks[index]
    return values


def same_under_drift(sd: float, tau_s: float, trials: int, seed: int = 1) -> dict[str, float]:
    """How often each method of comparison calls identical kernels different.

    paired: the 95 % interval of interleaved pairs excludes zero. declared: the farm's verdict is
    `faster` or `slower`. sequential: Mann-Whitney's test at 5 % on two consecutive windows with the
    same number of samples, as in a harness that times one variant after the other.
    """
    rng = np.random.default_rng(seed)
    counts = {"paired": 0, "declared": 0, "sequential": 0}
    for _ in range(trials):
        clock = wander(rng, 2 * _PAIRS, sd, tau_s)
        times = np.exp(clock + rng.normal(0, _SIGMA, 2 * _PAIRS)) * _US
        first, second = times[0::2].copy(), times[1::2].copy()
        # Every second pair runs in reverse order, as in a race.
        first[1::2], second[1::2] = times[3::4], times[2::4]
        ratio = compare_pairs(first, second)
        counts["paired"] += not ratio.low <= 0 <= ratio.high
        call = ratio.verdict()
        counts["declared"] += call in ("faster", "slower")
        windows = times[:_WINDOW], times[_WINDOW:]
        counts["sequential"] += stats.mannwhitneyu(*windows).pvalue < 0.05
    return {name: count / trials for name, count in counts.items()}


# -- C6 --------------------------------------------------------------------------------------------
def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(0, 0.01, shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One sample in ten is slower, by 20 % on average: W6 (heavy outliers, crowded top)."""
    late = rng.random(shape) < 0.1
    return rng.normal(0, 0.02, shape) + late * rng.exponential(0.2, shape)


NOISES: dict[str, Samples] = {"normal": _normal, "outliers": _heavy}


def coverages(trials: int, seed: int = 2) -> Iterator[tuple[str, float, float]]:
    """Coverage of the farm's intervals: the case, the nominal confidence, the observed coverage.

    Both sides have the same noise, so the true log-ratio is the planted one.
    """
    truth = 0.013
    for (name, noise), count, confidence in product(NOISES.items(), COUNTS, CONFIDENCES):
        rng = np.random.default_rng([seed, count])
        covered = 0
        for _ in range(trials):
            a, b = noise(rng, (2, count))
            ratio = compare_pairs(np.exp(a + truth), np.exp(b), confidence=confidence)
            covered += ratio.low <= truth <= ratio.high
        yield f"{name}, {count} pairs", confidence, covered / trials


def coarse_clock(trials: int, seed: int = 3) -> dict[str, float]:
    """Error of trimmed means and of medians of a ratio under a clock that ticks at 20 % of the
    time.

    The true ratio is 1.05. Each estimate uses 400 pairs, whose times spread over several ticks
    through noise of 10 %.
    """
    rng = np.random.default_rng(seed)
    truth, count, covered = math.log(1.05), 400, 0
    errors: dict[str, list[float]] = {"trimmed_mean": [], "median": []}
    for _ in range(trials):
        a = np.exp(truth + rng.normal(0, 0.1, count))
        b = np.exp(rng.normal(0, 0.1, count))
        a, b = (np.maximum(QUANTUM, np.round(x / QUANTUM) * QUANTUM) for x in (a, b))
        ratio = compare_pairs(a, b, quantum_us=QUANTUM)
        covered += ratio.low <= truth <= ratio.high
        errors["trimmed_mean"].append(abs(ratio.value - truth))
        errors["median"].append(abs(math.log(np.median(a) / np.median(b)) - truth))
    means = {name: statistics.mean(values) for name, values in errors.items()}
    return {**means, "covered": covered / trials}


def against_scipy(trials: int, seed: int = 4) -> dict[str, float]:
    """The largest difference from scipy's trimmed mean and Yuen's one-sample standard error."""
    rng = np.random.default_rng(seed)
    off = {"trimmed_mean": 0.0, "half_width": 0.0}
    for count in rng.integers(2, 200, trials):
        values = rng.standard_t(3, count)
        off["trimmed_mean"] = max(
            off["trimmed_mean"], abs(trimmed_mean(values) - stats.trim_mean(values, TRIM))
        )
        ratio = compare_pairs(np.exp(values), np.ones(count))
        cut = int(TRIM * count)
        # Half a value more, because rounding could otherwise cut one value too few.
        share = (cut + 0.5) / count
        winsorised = np.asarray(stats.mstats.winsorize(values, (share, share)))
        error = stats.sem(winsorised) / (1 - 2 * cut / count)
        low, _ = stats.t.interval(0.95, count - 2 * cut - 1, ratio.value, error)
        off["half_width"] = max(off["half_width"], abs(low / ratio.low - 1))
    return off


def medians_covered(trials: int, seed: int = 5) -> Iterator[tuple[int, float, float]]:
    """Coverage of the report's intervals of the median: samples, exact coverage, observed coverage.

    The intervals are order statistics; the exact coverage follows from scipy's binomial
    distribution.
    """
    for count in (8, 20, 64, 200):
        rng = np.random.default_rng([seed, count])
        covered = 0
        for values in np.exp(_heavy(rng, (trials, count))):
            low, high = median_interval(list(values))
            covered += low <= _heavy_median() <= high
        # The rank of the lower end is the number of values below it.
        rank = list(np.sort(values)).index(low)
        yield count, 1 - 2 * float(stats.binom.cdf(rank, count, 0.5)), covered / trials


@cache
def _heavy_median() -> float:
    """The median of exp(noise with outliers), from a large sample."""
    return float(np.exp(np.median(_heavy(np.random.default_rng(0), (4_000_000,)))))
