"""Rankings of configs from interleaved passes, and the regret of a choice.

All times of one pass share its drift and clock. A config's time is therefore its distance, pass by
pass, from the fast configs that ran in every pass. The common mode of a pass is the slowdown that
all its samples share; it is reported separately.

Notation: x[n, p] is ln of the sample of config n in pass p, c[p] the common mode of pass p, and
x[n, p] - c[p] minus its mean over p the residual of the sample. Times are in microseconds.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field

from scipy.stats import kendalltau

from search_spaces.recorded.recorded_space import Noise
from search_spaces.statistics import trimmed_mean

#: A residual beyond this many standard deviations is an outlier.
_OUTLIER = 5.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Samples of interleaved passes."""

    #: Microseconds by name, one sample per pass.
    samples: dict[str, list[float]]
    #: Device time per sample in addition to the sample itself.
    overhead_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A ranking of configs by time."""

    #: Time by name.
    times_us: dict[str, float]
    #: Samples by name, without the common mode of their passes.
    samples_us: dict[str, list[float]]
    #: Residuals of ln(sample) by name.
    residuals: dict[str, list[float]] = field(repr=False)
    #: ln of the common mode of every pass, one list per stage.
    common: list[list[float]] = field(repr=False)

    @property
    def best(self) -> str:
        return min(self.times_us, key=lambda name: (self.times_us[name], name))


def orders(count: int, passes: int, seed: str, first: int = 0) -> list[list[int]]:
    """Orders of passes `first` onwards: random ones, each followed by its reverse."""
    result = []
    for turn in range(first, first + passes):
        order = list(range(count))
        random.Random(f"{seed}/{turn // 2}").shuffle(order)
        result.append(order if turn % 2 == 0 else order[::-1])
    return result


def fastest(samples: dict[str, list[float]], share: float, least: int) -> list[str]:
    """Names of the fastest share by median, at least `least`, in their original order."""
    count = max(min(least, len(samples)), math.ceil(share * len(samples)))
    ranked = sorted(samples, key=lambda name: (statistics.median(samples[name]), name))
    kept = set(ranked[:count])
    return [name for name in samples if name in kept]


def ranked(stages: list[Stage]) -> Ranked:
    """The ranking of all names in the first stage; later stages hold some of them.

    The common mode of a pass is the median over the names that are in every stage.
    """
    always = set.intersection(*(set(stage.samples) for stage in stages))
    modes = []
    for stage in stages:
        columns = zip(*(stage.samples[name] for name in sorted(always)), strict=True)
        modes.append([statistics.median(map(math.log, column)) for column in columns])
    level = statistics.median([mode for stage in modes for mode in stage])
    times, samples, residuals = {}, {}, {}
    for name in stages[0].samples:
        logs = [
            math.log(value) - mode
            for stage, mode_of in zip(stages, modes, strict=True)
            for value, mode in zip(stage.samples.get(name, ()), mode_of, strict=False)
        ]
        centre = trimmed_mean(logs)
        times[name] = math.exp(level + centre)
        samples[name] = [math.exp(level + log) for log in logs]
        residuals[name] = [log - centre for log in logs]
    return Ranked(times, samples, residuals, modes)


def merged(a: Ranked, b: Ranked) -> Ranked:
    """Merge two rankings of the same names: times are geometric means, samples are joined."""
    names = [name for name in a.times_us if name in b.times_us]
    shift = statistics.median(math.log(a.times_us[n] / b.times_us[n]) for n in names)
    times = {n: math.sqrt(a.times_us[n] * b.times_us[n]) for n in names}
    # Both rankings are scaled to their mean level: a common factor says nothing about the names.
    up, down = math.exp(shift / 2), math.exp(-shift / 2)
    samples = {
        n: [v * down for v in a.samples_us[n]] + [v * up for v in b.samples_us[n]] for n in names
    }
    residuals = {n: a.residuals[n] + b.residuals[n] for n in names}
    return Ranked(times, samples, residuals, a.common + b.common)


def agreement(a: Ranked, b: Ranked) -> dict[str, float]:
    """Agreement of two rankings of the same names.

    tau, tau_top: Kendall's tau-b over all names, and over the fastest tenth (at least 10) of both
    together. top_10: how many of the first ten of one are in the first ten of the other. a_by_b:
    how much slower than b's best a's best is in b, as a share. floor: the larger of a_by_b and its
    converse, which is the uncertainty of the best time.
    """
    names = [name for name in a.times_us if name in b.times_us]
    x, y = ({n: r.times_us[n] for n in names} for r in (a, b))
    both = sorted(names, key=lambda n: (x[n] * y[n], n))
    tenth = both[: max(10, math.ceil(len(both) / 10))]
    first_x, first_y = (set(sorted(names, key=times.__getitem__)[:10]) for times in (x, y))
    a_by_b = y[min(names, key=x.__getitem__)] / min(y.values()) - 1
    b_by_a = x[min(names, key=y.__getitem__)] / min(x.values()) - 1
    return {
        "tau": _tau([x[n] for n in names], [y[n] for n in names]),
        "tau_top": _tau([x[n] for n in tenth], [y[n] for n in tenth]),
        "top_10": len(first_x & first_y),
        "a_by_b": a_by_b,
        "b_by_a": b_by_a,
        "floor": max(a_by_b, b_by_a),
    }


def _tau(x: list[float], y: list[float]) -> float:
    if len(x) < 2:
        return 1.0
    tau = float(kendalltau(x, y, variant="b").statistic)
    return 1.0 if math.isnan(tau) else tau


def regret(times_us: dict[str, float], tried: set[str], chosen: str, floor: float) -> dict:
    """Regret of a search as shares of the best time: exploration, selection and their total.

    The parts `_counted` are the excess over the noise floor. Raises KeyError for a choice without a
    time.
    """
    best = min(times_us.values())
    tried_best = min((times_us[name] for name in tried if name in times_us), default=math.inf)
    tried_best = min(tried_best, times_us[chosen])
    parts = {
        "exploration": tried_best / best - 1,
        "selection": times_us[chosen] / tried_best - 1,
        "total": times_us[chosen] / best - 1,
    }
    return parts | {f"{name}_counted": max(0.0, part - floor) for name, part in parts.items()}


def noise_of(ranked: Ranked, overhead_us: float) -> Noise:
    """The noise model of docs/recorded_spaces.md, fitted to residuals and common modes."""
    sigmas, beyond, count = [], [], 0
    for residuals in ranked.residuals.values():
        sigma = 1.4826 * statistics.median(map(abs, residuals))
        sigmas.append(sigma)
        count += len(residuals)
        beyond += [r for r in residuals if r > _OUTLIER * sigma and r > 1e-3]
    drifts = [statistics.pstdev(mode) for mode in ranked.common if len(mode) > 1]
    return Noise(
        sigma=round(statistics.median(sigmas), 6),
        outlier_share=round(len(beyond) / max(1, count), 6),
        outlier_mean=round(statistics.fmean(beyond), 6) if beyond else 0.0,
        drift_sd=round(statistics.median(drifts), 6) if drifts else 0.0,
        overhead_us=round(max(0.0, overhead_us), 3),
    )
