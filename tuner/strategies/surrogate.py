"""A model of one space's times, told of results as they come: what a search believes by now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import erfcx, ndtr

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.blas import one_thread
from tuner.strategies.candidate_points import Floats, Points
from tuner.strategies.gaussian_process import Conditioned, Matern, Posterior

Rows = NDArray[np.int64]

#: Times this far above the best (a share) are compressed: what is slow need not be told apart.
_SCALE = 0.05
#: Deviations of all targets that a certain failure is taken to be slower by.
_FAILING = 2.0
#: Results below which nothing is modelled.
MIN_TIMED = 4
#: Results the hyperparameters, and the predictions, rest on at most.
_FITTED, _USED = 200, 400
#: Hyperparameters are fitted again after this share of new results, within the bounds.
_REFIT, _REFIT_MIN, _REFIT_MAX = 0.25, 3, 50
#: How fast a failure stops to count with distance: the power of its correlation.
_SHARPNESS = 4
#: Of the latest predictions so many are held against the model, none for more than so many squared
#: deviations, beside so many that count as exactly right.
_RECENT, _WORST_ERROR, _TRUST = 30, 16.0, 8


@dataclass(frozen=True, slots=True)
class Beliefs:
    """The model at all points: mean and standard deviation of the target, chance to work at all.

    The target is (ln time - ln best) / 0.05 below the best and the logarithm of one plus that above
    it, shifted and scaled to be of mean 0 and deviation 1; `best` is the best in that unit, `unit`
    the deviation by which it was divided.
    """

    mean: Floats
    deviation: Floats
    works: Floats
    best: float
    unit: float
    given: Conditioned


@dataclass(frozen=True, slots=True)
class _Prediction:
    """A predicted target, with the best score at that time and the target's scale."""

    mean: float
    variance: float
    low: float
    best: float
    unit: float

    def squared_error(self, score: float) -> float:
        above = (score - self.low) / _SCALE
        target = self.best + (math.log1p(above) if above > 0 else above) / self.unit
        return (target - self.mean) ** 2 / self.variance


class Surrogate:
    """Learns ln(time) over the points of a space; see `Beliefs`.

    Failed configs are no targets: a penalty would bend the function around them. They lower the
    estimated chance that configs near them work. Deterministic: the same calls give the same model.
    """

    def __init__(self, space: BoundSpace, seed: int = 0) -> None:
        one_thread()
        self.points = Points(space, seed)
        #: ln(time) by number of the point; None where it failed.
        self.told: dict[int, float | None] = {}
        #: Asked and not told yet, in order.
        self.pending: dict[int, None] = {}
        self._timed: list[int] = []
        self._kernel = Matern(self.points.x.shape[1])
        self._posterior: Posterior | None = None
        self._refit_at = 0
        #: What was predicted of pending points, and squared errors of what has come true since.
        self._predicted: dict[int, _Prediction] = {}
        self._errors: list[float] = []
        self._given: tuple[Conditioned, float, float] | None = None

    # -- what happened -------------------------------------------------------------------------
    def ask(self, number: int) -> None:
        """The point is under way."""
        if number in self.told:
            return
        if number not in self.pending:
            self._predict(number)
        self.pending.setdefault(number)
        if self._posterior is not None and number < len(self._posterior.points):
            self._posterior.append(number)

    def drop(self, numbers: Iterable[int]) -> None:
        """Points that are not under way any more and were not tried; they may be asked again."""
        for number in numbers:
            self.pending.pop(number, None)
            self._predicted.pop(number, None)
        if self._posterior is not None:
            self._refactor()

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """A result; see `Strategy.tell`. A config that is not of the space is no news."""
        number = self.points.add(config)
        if number is None:
            return
        self.ask(number)
        self.pending.pop(number, None)
        right = status is Status.CORRECT and score is not None and math.isfinite(score)
        if self.told.get(number) is None and right:
            self._timed.append(number)
        elif not right and number in self._timed:
            self._timed.remove(number)
        said = self._predicted.pop(number, None)
        if said is not None and right and score is not None:
            self._errors.append(said.squared_error(score))
        self.told[number] = score if right else None
        self._given = None

    @property
    def timed(self) -> int:
        return len(self._timed)

    def best(self) -> int | None:
        """The number of the fastest point so far."""
        return min(self._timed, key=lambda n: (self.told[n], n), default=None)

    def score(self, number: int) -> float:
        value = self.told[number]
        assert value is not None
        return value

    def fresh(self) -> Rows:
        """Points that were not asked."""
        unseen = np.ones(len(self.points), dtype=bool)
        unseen[[*self.told, *self.pending]] = False
        return np.flatnonzero(unseen)

    # -- what follows --------------------------------------------------------------------------
    def beliefs(self) -> Beliefs | None:
        """The model given everything told and asked; None while too little is known."""
        if len(self._timed) < MIN_TIMED:
            return None
        if self._posterior is None or len(self.told) >= self._refit_at:
            self._refit()
        posterior = self._grown()
        if self._given is None:
            rows = [n for n in self._chosen(_USED) if n in posterior]
            y, best, unit = self._targets(rows)
            self._given = posterior.condition(rows, y), best, unit
        given, best, unit = self._given
        deviation = np.sqrt(given.amplitude * posterior.variance)
        return Beliefs(given.mean, deviation, self._works(), best, unit, given)

    def log_improvement(self, beliefs: Beliefs, rows: Rows) -> Floats:
        """ln of the expected improvement over the best, in units of the target, given that what is
        pending will be told. It tells who is next also where improvement is next to impossible.

        What fails has no time, so its region would stay uncertain, and tempting, for good: the less
        a point is likely to work, the slower and the surer it is taken to be.
        """
        works = beliefs.works[rows]
        deviation = beliefs.deviation[rows] * self.doubt() * works
        mean = beliefs.mean[rows] + _FAILING * (1.0 - works)
        return np.asarray(np.log(deviation) + _log_gain((beliefs.best - mean) / deviation))

    def covariance(self, beliefs: Beliefs, rows: Rows) -> Floats:
        """Of the targets at some points, given the results alone (not what is pending)."""
        x = self.points.x[rows]
        given = beliefs.given
        half = solve_triangular(given.root, given.correlations[:, rows], lower=True)
        left = self._kernel.correlation(x, x) - half.T @ half
        # What no smooth function follows is a property of the config, and may make it the best.
        left += self._kernel.noise * np.eye(len(rows))
        return np.asarray(given.amplitude * left * self.doubt() ** 2)

    def doubt(self) -> float:
        """How far off the latest predictions were, in their own standard deviations; at least 1."""
        recent = np.array(self._errors[-_RECENT:])
        total = float(np.minimum(recent, _WORST_ERROR).sum())
        return max(1.0, math.sqrt((total + _TRUST) / (len(recent) + _TRUST)))

    def gains(self, beliefs: Beliefs, targets: Floats) -> Floats:
        """How far below the best such targets are, as ln of the ratio; 0 where they are not."""
        return np.asarray(_SCALE * np.maximum(0.0, (beliefs.best - targets) * beliefs.unit))

    # -- inside --------------------------------------------------------------------------------
    def _predict(self, number: int) -> None:
        """Note what the model says of a point that is asked now, to be held against it later."""
        if self._given is None or self._posterior is None or number >= len(self._given[0].mean):
            return
        given, best, unit = self._given
        variance = given.amplitude * (self._posterior.variance[number] + self._kernel.noise)
        low = min(self.score(n) for n in self._timed)
        self._predicted[number] = _Prediction(given.mean[number], variance, low, best, unit)

    def _refit(self) -> None:
        """New hyperparameters and, in a sampled space, the neighbours of the best as new points."""
        for number in [] if self.points.complete else self._chosen(10)[:5]:
            self.points.neighbours(number)
        rows = self._chosen(_FITTED)
        self._kernel.fit(self.points.x[rows], self._targets(rows)[0])
        self._refactor()
        more = min(max(_REFIT * len(self.told), _REFIT_MIN), _REFIT_MAX)
        self._refit_at = len(self.told) + int(more)

    def _refactor(self) -> None:
        failed = [n for n, score in self.told.items() if score is None][-_USED:]
        rows = [*self._chosen(_USED), *failed, *self.pending]
        self._posterior = Posterior(self._kernel, self.points.x, rows)
        self._given = None

    def _grown(self) -> Posterior:
        if self._posterior is None or len(self._posterior.points) < len(self.points):
            self._refactor()
        assert self._posterior is not None
        return self._posterior

    def _chosen(self, limit: int) -> list[int]:
        """Up to `limit` timed points: the fastest half of them, the rest spread over the others."""
        if len(self._timed) <= limit:
            return list(self._timed)
        ranked = sorted(self._timed, key=lambda n: (self.told[n], n))
        rest = ranked[limit // 2 :]
        picks = np.linspace(0, len(rest) - 1, limit - limit // 2).astype(int)
        return ranked[: limit // 2] + [rest[i] for i in dict.fromkeys(picks.tolist())]

    def _targets(self, rows: list[int]) -> tuple[Floats, float, float]:
        scores = np.array([self.score(n) for n in rows])
        above = np.log1p((scores - scores.min()) / _SCALE)
        mean, unit = float(above.mean()), float(above.std())
        unit = unit if unit > 1e-9 else 1.0
        return (above - mean) / unit, -mean / unit, unit

    def _works(self) -> Floats:
        """The share of successes among results, the near ones counting most."""
        failed = [n for n, score in self.told.items() if score is None][-_USED:]
        if not failed:
            return np.ones(len(self.points))
        rows = self._chosen(_USED)
        share = len(self._timed) / len(self.told)
        x = self.points.x
        bad = (self._kernel.correlation(x[failed], x) ** _SHARPNESS).sum(0)
        good = (self._kernel.correlation(x[rows], x) ** _SHARPNESS).sum(0)
        return np.asarray((good + share) / (good + bad + 1.0))


def _log_gain(z: Floats) -> Floats:
    """ln(z Phi(z) + phi(z)), also far below 0, where both terms are no more than rounding errors
    (Ament et al., Unexpected Improvements to Expected Improvement, NeurIPS 2023)."""
    density = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * math.sqrt(0.5 * math.pi) * erfcx(-low / math.sqrt(2.0))
    near = np.maximum(z, -1.0)
    plain = near * ndtr(near) + np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi)
    return np.where(z < -1.0, density + np.log(np.maximum(tail, 1e-17)), np.log(plain))
