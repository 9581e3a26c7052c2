"""A model of the scores over one search space, which learns results as they come.

Notation: the space has m points, numbered; n of them have a score.

    score       ln(time in us) of a search; any value to be minimised in a user's study
    excess      (score - best score) / scale
    target      ln(1 + excess), shifted and divided by `unit` to have mean 0 and deviation 1
    mean, deviation, success (m,)   the posterior of the targets, and the chance to work at all

Failed configs are no targets, because a penalty would bend the function around them. They lower
the estimated chance that nearby configs work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import BoundSpace
from tuner.strategies.blas_threads import one_blas_thread
from tuner.strategies.candidate_points import CandidatePoints
from tuner.strategies.gaussian_process import Floats, Matern52, PosteriorMean, PosteriorVariance

# -- how far off a model's own predictions were: the factor by which its deviations are widened ----
# Notation: a prediction made while a config was pending has mean m and variance v, in units of the
# target of that moment. Its result gives the target t and the squared error e = (t - m)^2 / v. The
# calibration error is sqrt((sum min(e, 16) + 8) / (k + 8)) over the latest k <= 30 results, and at
# least 1. The constant 8 stands for as many predictions with an error of exactly one deviation.
#: The latest predictions that count, and the greatest squared error of one of them.
_RECENT, _WORST_ERROR = 30, 16.0
#: How many predictions with an error of one deviation are assumed before any is known.
_PRIOR = 8


@dataclass(frozen=True, slots=True)
class TargetScale:
    """The mapping from scores to the targets of a model: ln(1 + excess) above the best score.

    What is far slower than the best need not be resolved, so excess over the best is compressed.
    """

    #: The best score: the lowest.
    low: float
    #: The excess over the best score at which compression begins, in units of the score.
    scale: float
    #: The target of the best score.
    best: float
    #: The deviation by which compressed excesses were divided.
    unit: float

    def target(self, score: float) -> float:
        """The target of a later score, which may be below `low`; not compressed there."""
        excess = (score - self.low) / self.scale
        return self.best + (math.log1p(excess) if excess > 0 else excess) / self.unit


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted target."""

    mean: float
    variance: float
    #: The scale of targets when the prediction was made.
    scale: TargetScale

    def squared_error(self, score: float) -> float:
        return (self.scale.target(score) - self.mean) ** 2 / self.variance


class DeviationScale:
    """Predictions of pending points, and the errors of those whose result is known."""

    def __init__(self) -> None:
        self._pending: dict[int, Prediction] = {}
        self._errors: list[float] = []

    def predict(self, number: int, prediction: Prediction) -> None:
        self._pending[number] = prediction

    def drop(self, number: int) -> None:
        """The point gets no result, or a failure."""
        self._pending.pop(number, None)

    def observe(self, number: int, score: float) -> None:
        """Compare a result with its prediction, if there is one."""
        prediction = self._pending.pop(number, None)
        if prediction is not None:
            self._errors.append(prediction.squared_error(score))

    def error(self) -> float:
        """Root mean square error of the latest predictions, in their own deviations; at least 1."""
        recent = np.array(self._errors[-_RECENT:])
        total = float(np.minimum(recent, _WORST_ERROR).sum())
        return max(1.0, math.sqrt((total + _PRIOR) / (len(recent) + _PRIOR)))


# -- A model of the scores over one search space, which learns results as they come ----------------
Rows = NDArray[np.int64]

#: The scale for scores that are ln(time): times 5 % above the best are compressed.
LOG_TIME_SCALE = 0.05
#: The scale of unknown scores, as a share of their interquartile range.
_SCALE_SHARE = 0.1
#: Deviations of all targets by which a certain failure is taken to be slower.
_FAILURE_PENALTY = 2.0
#: Results below which nothing is modelled.
MIN_TIMED = 4
#: How many results at most determine the hyperparameters, and the predictions.
_FITTED, _USED = 200, 400
#: Hyperparameters are fitted again after this share of new results, within the bounds.
_REFIT, _REFIT_MIN, _REFIT_MAX = 0.25, 3, 50
#: How fast the influence of a failure falls with distance: the power of its correlation.
_SHARPNESS = 4


@dataclass(frozen=True, slots=True)
class Posterior:
    """The model at all m points."""

    #: Mean of the target: (m,).
    mean: Floats
    #: Standard deviation of the target, given results and pending points: (m,).
    deviation: Floats
    #: The chance that a point works at all: (m,).
    success: Floats
    #: How scores become targets; `scale.best` is the best target.
    scale: TargetScale
    #: The mean with the factor it was computed with.
    given: PosteriorMean


class Surrogate:
    """A Gaussian process over the points of a space; see `Posterior`.

    scale: the excess over the best score at which targets are compressed, in units of the score;
    None takes a tenth of the scores' interquartile range. Deterministic: the same calls give the
    same model.
    """

    def __init__(
        self, space: BoundSpace, seed: int = 0, scale: float | None = LOG_TIME_SCALE
    ) -> None:
        self.points = CandidatePoints(space, seed)
        #: The score by number of the point; None where it failed.
        self.results: dict[int, float | None] = {}
        #: Points under evaluation, in order.
        self.pending: dict[int, None] = {}
        self._scale = scale
        self._timed: list[int] = []
        self._kernel = Matern52(self.points.x.shape[1])
        self._variance: PosteriorVariance | None = None
        self._refit_at = 0
        self._calibration = DeviationScale()
        self._given: tuple[PosteriorMean, TargetScale] | None = None

    # -- events --------------------------------------------------------------------------------
    def start(self, number: int) -> None:
        """The point is under evaluation."""
        if number in self.results:
            return
        if number not in self.pending:
            self._predict(number)
        self.pending.setdefault(number)
        if self._variance is not None and number < len(self._variance.points):
            with one_blas_thread():
                self._variance.append(number)

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Pending points get no result; they are untried again."""
        for number in numbers:
            self.pending.pop(number, None)
            self._calibration.drop(number)
        if self._variance is not None:
            self._factorise()

    def tell(self, number: int, score: float | None) -> None:
        """A result; None for a failure."""
        self.start(number)
        self.pending.pop(number, None)
        if self.results.get(number) is None and score is not None:
            self._timed.append(number)
        elif score is None and number in self._timed:
            self._timed.remove(number)
        if score is None:
            self._calibration.drop(number)
        else:
            self._calibration.observe(number, score)
        self.results[number] = score
        self._given = None

    def list_untried(self) -> Rows:
        """Points without a result that are not pending."""
        unseen = np.ones(len(self.points), dtype=bool)
        unseen[[*self.results, *self.pending]] = False
        return np.flatnonzero(unseen)

    # -- predictions ---------------------------------------------------------------------------
    def posterior(self) -> Posterior | None:
        """The model given all results and pending points; None with fewer than 4 results."""
        if len(self._timed) < MIN_TIMED:
            return None
        with one_blas_thread():
            if self._variance is None or len(self.results) >= self._refit_at:
                self._refit()
            factor = self._factor()
            if self._given is None:
                rows = [n for n in self._choose(_USED) if n in factor]
                y, scale = self._targets(rows)
                self._given = factor.mean_given(rows, y), scale
            given, scale = self._given
            deviation = np.sqrt(given.amplitude * factor.variance)
            return Posterior(given.mean, deviation, self._success(), scale, given)

    def log_improvement(self, posterior: Posterior, rows: Rows) -> Floats:
        """ln of the expected improvement over the best, in units of the target: (len(rows),).

        It still ranks points whose improvement is nearly impossible. A failing config has no time,
        so its region would stay uncertain and attractive for good. The less likely a point is to
        work, the slower and the more certain its target is therefore taken to be.
        """
        success = posterior.success[rows]
        deviation = posterior.deviation[rows] * self.calibration_error() * success
        mean = posterior.mean[rows] + _FAILURE_PENALTY * (1.0 - success)
        return np.asarray(np.log(deviation) + log_h((posterior.scale.best - mean) / deviation))

    def covariance(self, posterior: Posterior, rows: Rows) -> Floats:
        """Of the targets at some points, given results but not pending points: (rows, rows)."""
        from scipy.linalg import solve_triangular

        x = self.points.x[rows]
        given = posterior.given
        with one_blas_thread():
            half = solve_triangular(given.root, given.correlations[:, rows], lower=True)
            left = self._kernel.correlation(x, x) - half.T @ half
        # Roughness that no smooth function follows belongs to the config, and may make it the best.
        left += self._kernel.noise * np.eye(len(rows))
        return np.asarray(given.amplitude * left * self.calibration_error() ** 2)

    def calibration_error(self) -> float:
        """How far off the latest predictions were, in their own deviations; at least 1."""
        return self._calibration.error()

    def gains(self, posterior: Posterior, targets: Floats) -> Floats:
        """How far targets are below the best, in units of the score; 0 where they are not."""
        scale = posterior.scale
        return np.asarray(scale.scale * np.maximum(0.0, (scale.best - targets) * scale.unit))

    # -- inside --------------------------------------------------------------------------------
    def _predict(self, number: int) -> None:
        """Keep the present prediction of a point, to compare it with its result later."""
        if self._given is None or self._variance is None or number >= len(self._given[0].mean):
            return
        given, scale = self._given
        variance = given.amplitude * (self._variance.variance[number] + self._kernel.noise)
        self._calibration.predict(number, Prediction(given.mean[number], variance, scale))

    def _refit(self) -> None:
        """New hyperparameters and, in a sampled space, the neighbours of the best as new points."""
        for number in [] if self.points.complete else self._choose(10)[:5]:
            self.points.neighbours(number)
        rows = self._choose(_FITTED)
        self._kernel.fit(self.points.x[rows], self._targets(rows)[0])
        self._factorise()
        more = min(max(_REFIT * len(self.results), _REFIT_MIN), _REFIT_MAX)
        self._refit_at = len(self.results) + int(more)

    def _factorise(self) -> None:
        failed = [n for n, score in self.results.items() if score is None][-_USED:]
        rows = [*self._choose(_USED), *failed, *self.pending]
        with one_blas_thread():
            self._variance = PosteriorVariance(self._kernel, self.points.x, rows)
        self._given = None

    def _factor(self) -> PosteriorVariance:
        if self._variance is None or len(self._variance.points) < len(self.points):
            self._factorise()
        assert self._variance is not None
        return self._variance

    def _score(self, number: int) -> float:
        value = self.results[number]
        assert value is not None
        return value

    def _choose(self, limit: int) -> list[int]:
        """Up to `limit` timed points: the fastest half of them, the rest spread over the others."""
        if len(self._timed) <= limit:
            return list(self._timed)
        ranked = sorted(self._timed, key=lambda n: (self.results[n], n))
        rest = ranked[limit // 2 :]
        picks = np.linspace(0, len(rest) - 1, limit - limit // 2).astype(int)
        return ranked[: limit // 2] + [rest[i] for i in dict.fromkeys(picks.tolist())]

    def _targets(self, rows: list[int]) -> tuple[Floats, TargetScale]:
        scores = np.array([self._score(n) for n in rows])
        low, scale = float(scores.min()), self._scale
        if scale is None:
            scale = _SCALE_SHARE * float(np.subtract(*np.percentile(scores, [75, 25]))) or 1.0
        excess = np.log1p((scores - low) / scale)
        mean, unit = float(excess.mean()), float(excess.std())
        unit = unit if unit > 1e-9 else 1.0
        return (excess - mean) / unit, TargetScale(low, scale, -mean / unit, unit)

    def _success(self) -> Floats:
        """The share of successes among results, the near ones counting most: (m,)."""
        failed = [n for n, score in self.results.items() if score is None][-_USED:]
        if not failed:
            return np.ones(len(self.points))
        rows = self._choose(_USED)
        share = len(self._timed) / len(self.results)
        x = self.points.x
        bad = (self._kernel.correlation(x[failed], x) ** _SHARPNESS).sum(0)
        good = (self._kernel.correlation(x[rows], x) ** _SHARPNESS).sum(0)
        return np.asarray((good + share) / (good + bad + 1.0))


def log_h(z: Floats) -> Floats:
    """ln h(z), also far below 0, where both terms of h are smaller than their rounding errors.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, NeurIPS 2023.
    """
    from scipy.special import erfcx, ndtr

    density = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
    low = np.minimum(z, -1.0)
    tail = 1.0 + low * math.sqrt(0.5 * math.pi) * erfcx(-low / math.sqrt(2.0))
    near = np.maximum(z, -1.0)
    plain = near * ndtr(near) + np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi)
    return np.where(z < -1.0, density + np.log(np.maximum(tail, 1e-17)), np.log(plain))
