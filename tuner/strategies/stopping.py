"""When to stop: what the configs not tried yet can still be expected to gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.surrogate import Beliefs, Rows, Surrogate

#: Points whose joint distribution is drawn from: the most promising.
_CANDIDATES = 128
_DRAWS = 256


class ExpectedGain:
    """Estimates, whatever strategy is at work, what further trials of a space are worth.

    Draws from the joint posterior of a Gaussian process over the most promising untried points and
    those under way, and averages by how much the best untried one beats all others. The deviations
    are widened by how far off the model's latest predictions were: a model is believed as far as it
    has been right. A strategy's own surrogate may be shared; it is then told by the strategy.
    """

    def __init__(
        self, space: BoundSpace, seed: int = 0, surrogate: Surrogate | None = None
    ) -> None:
        self.shared = surrogate is not None
        self.surrogate = surrogate or Surrogate(space, seed)

    def ask(self, config: Config) -> None:
        """A config is under way."""
        number = self.surrogate.points.add(config)
        if number is not None:
            # What the model thinks of it now is what its result is held against.
            self.surrogate.beliefs()
            self.surrogate.ask(number)

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        """A result; see `Strategy.tell`."""
        if not self.shared:
            self.surrogate.tell(config, score, status)

    def expected_gain(self) -> float:
        """Expected relative improvement, 0.005 being 0.5 % of the best time.

        Infinite while too little is known, 0 when every point was asked.
        """
        beliefs = self.surrogate.beliefs()
        fresh = self.surrogate.fresh()
        if beliefs is None:
            return math.inf if len(fresh) or self.surrogate.pending else 0.0
        if not len(fresh):
            return 0.0
        rows, untried = self._candidates(beliefs, fresh)
        # The same draws every time: the estimate moves with what is known, not with luck.
        rng = np.random.default_rng(0)
        covariance = self.surrogate.covariance(beliefs, rows)
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        targets = beliefs.mean[rows] + rng.standard_normal((_DRAWS, len(rows))) @ root.T
        works = rng.random((_DRAWS, len(rows))) < beliefs.works[rows]
        gains = np.where(works, self.surrogate.gains(beliefs, targets), 0.0)
        without = gains[:, untried:].max(axis=1, initial=0.0)
        ahead = np.maximum(0.0, gains[:, :untried].max(axis=1) - without)
        return float(np.mean(-np.expm1(-ahead)))

    def chances(self, configs: Sequence[Config]) -> list[float]:
        """The probability of each config to be faster than the best: 1 while little is known, 0 for
        one that was tried, is under way or infeasible."""
        model = self.surrogate
        numbers = [model.points.add(config) for config in configs]
        beliefs = model.beliefs()
        return [0.0 if n is None else self._chance(beliefs, n) for n in numbers]

    def _chance(self, beliefs: Beliefs | None, number: int) -> float:
        if number in self.surrogate.told or number in self.surrogate.pending:
            return 0.0
        if beliefs is None:
            return 1.0
        variance = self.surrogate.covariance(beliefs, np.array([number]))[0, 0]
        below = (beliefs.best - float(beliefs.mean[number])) / math.sqrt(float(variance))
        return float(beliefs.works[number] * ndtr(below))

    def _candidates(self, beliefs: Beliefs, fresh: Rows) -> tuple[Rows, int]:
        """The untried points with the lowest bounds, then all that are under way."""
        bound = beliefs.mean[fresh] - 2.0 * beliefs.deviation[fresh]
        order = np.argsort(bound, kind="stable")[:_CANDIDATES]
        pending = np.array(list(self.surrogate.pending), dtype=np.int64)[-_CANDIDATES:]
        return np.concatenate([fresh[order], pending]), len(order)
