"""The gain that untried configs can still be expected to bring, by which budget `auto` stops.

Notation: rows are the c most promising untried points, then the p pending ones. T (k, c + p) holds
k joint draws of their targets from the posterior. A draw follows Student's t with 5 degrees of
freedom, scaled to the posterior covariance S:

    T = mean + sqrt(5 / chi2_5) Z S^(1/2),   Z (k, c + p) standard normal

A point's gain in a draw is how far its target is below the best, as ln of the ratio of times, or 0.
The expected gain is the mean over draws of the best untried gain in excess of the best pending one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.blas_threads import one_blas_thread
from tuner.strategies.gaussian_process import Floats
from tuner.strategies.strategy import time_score
from tuner.strategies.surrogate import Posterior, Rows, Surrogate

#: The limit of untried points, and of pending points, in the joint distribution.
_CANDIDATES = 128
_DRAWS = 256
#: Degrees of freedom of the draws: a few dozen results leave the hyperparameters uncertain.
_FREEDOM = 5.0
#: By how much deviations are widened before a pending build is given up: its result might have
#: proven the model wrong.
_CAUTION = 2.0


class ExpectedGain:
    """Estimates what further trials of a space are worth, for any strategy.

    The deviations are those of the model times its calibration error, so a model that predicted
    badly makes the search go on. The tails are heavy, because the best config is often one that the
    model did not predict. surrogate: a strategy's own model, which the strategy then keeps up to
    date; without one, a model is made.
    """

    def __init__(
        self, space: BoundSpace, seed: int = 0, surrogate: Surrogate | None = None
    ) -> None:
        self.shared = surrogate is not None
        self.surrogate = surrogate or Surrogate(space, seed)

    def start(self, config: Config) -> None:
        """A config is being evaluated."""
        number = self.surrogate.points.add(config)
        if number is not None:
            # Bring the prediction up to date, because the result will be compared with it.
            self.surrogate.posterior()
            self.surrogate.start(number)

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """A result; see `Strategy.tell`. The strategy tells a shared model itself."""
        number = None if self.shared else self.surrogate.points.add(config)
        if number is not None:
            self.surrogate.tell(number, time_score(score, status))

    def expected_gain(self) -> float:
        """Expected relative improvement; 0.005 is 0.5 % of the best time.

        Infinite while too little is known; 0 when no point is untried.
        """
        posterior = self.surrogate.posterior()
        untried = self.surrogate.list_untried()
        if posterior is None:
            return math.inf if len(untried) or self.surrogate.pending else 0.0
        if not len(untried):
            return 0.0
        rows = self._candidates(posterior, untried)
        count = len(rows) - len(self._pending())
        gains = self._gains(posterior, rows)
        return _mean_excess(
            gains[:, :count].max(axis=1, initial=0.0), gains[:, count:].max(axis=1, initial=0.0)
        )

    def surplus(
        self, configs: Sequence[Config], gain: float, widening: float = _CAUTION
    ) -> list[Config]:
        """The pending configs that need not be awaited, as many as possible.

        Together they are expected to gain less than `gain` over the others. The least promising
        come first. widening: the factor of the model's deviations.
        """
        model = self.surrogate
        posterior = model.posterior()
        if posterior is None:
            return []
        rows = self._candidates(posterior, model.list_untried()).tolist()
        gains = self._gains(posterior, np.array(rows), widening)
        awaited = {number: gains[:, rows.index(number)] for number in self._pending()}
        lost = np.zeros(len(gains))
        offered = {n: c for c in configs if (n := model.points.find(c)) in awaited}
        surplus = []
        for number in sorted(offered, key=lambda n: float(awaited[n].mean())):
            lost = np.maximum(lost, awaited.pop(number))
            others = np.array([*awaited.values()]).max(axis=0, initial=0.0)
            if _mean_excess(lost, others) >= gain:
                break
            surplus.append(offered[number])
        return surplus

    def withdraw(self, configs: Sequence[Config]) -> None:
        """Pending configs get no result; they are untried again."""
        numbers = (self.surrogate.points.find(config) for config in configs)
        self.surrogate.withdraw([number for number in numbers if number is not None])

    def chances(self, configs: Sequence[Config]) -> list[float]:
        """The probability that each config is faster than the best: 1 while little is known, 0 for
        one that was tried, is pending or infeasible."""
        model = self.surrogate
        numbers = [model.points.add(config) for config in configs]
        posterior = model.posterior()
        return [0.0 if n is None else self._chance(posterior, n) for n in numbers]

    def _chance(self, posterior: Posterior | None, number: int) -> float:
        from scipy.special import ndtr

        if number in self.surrogate.results or number in self.surrogate.pending:
            return 0.0
        if posterior is None:
            return 1.0
        variance = self.surrogate.covariance(posterior, np.array([number]))[0, 0]
        gap = posterior.scale.best - float(posterior.mean[number])
        return float(posterior.success[number] * ndtr(gap / math.sqrt(float(variance))))

    def _gains(self, posterior: Posterior, rows: Rows, widening: float = 1.0) -> Floats:
        """Draws (k, rows) of the gain of each point over the best, as ln of the ratio of times."""
        # The same draws every time: the estimate changes with the results, not by chance.
        rng = np.random.default_rng(0)
        covariance = self.surrogate.covariance(posterior, rows)
        with one_blas_thread():
            values, vectors = np.linalg.eigh(covariance)
            root = widening * vectors * np.sqrt(np.maximum(values, 0.0))
            scale = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, (_DRAWS, 1)))
            normal = rng.standard_normal((_DRAWS, len(rows)))
            targets = posterior.mean[rows] + scale * normal @ root.T
        success = rng.random((_DRAWS, len(rows))) < posterior.success[rows]
        return np.where(success, self.surrogate.gains(posterior, targets), 0.0)

    def _candidates(self, posterior: Posterior, untried: Rows) -> Rows:
        """The untried points with the lowest confidence bounds, then the pending points."""
        bound = posterior.mean[untried] - 2.0 * posterior.deviation[untried]
        order = np.argsort(bound, kind="stable")[:_CANDIDATES]
        return np.concatenate([untried[order], np.array(self._pending(), dtype=np.int64)])

    def _pending(self) -> list[int]:
        return list(self.surrogate.pending)[-_CANDIDATES:]


def _mean_excess(gains: Floats, others: Floats) -> float:
    """Mean over draws (k,) of the relative gain over the others, 0 where there is none."""
    return float(np.mean(-np.expm1(-np.maximum(0.0, gains - others))))
