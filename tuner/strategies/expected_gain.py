"""When to stop: what the configs not tried yet can still be expected to gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.candidate_points import Floats
from tuner.strategies.surrogate import Beliefs, Rows, Surrogate

#: Points whose joint distribution is drawn from: the most promising.
_CANDIDATES = 128
_DRAWS = 256
#: Degrees of freedom of the draws: a few dozen results leave the model's own parameters open.
_TAILS = 5.0
#: Deviations that builds are given up by, in those of the model, which they might prove wrong.
_DOUBTED = 2.0


class ExpectedGain:
    """Estimates, whatever strategy is at work, what further trials of a space are worth.

    Draws from the joint posterior of a Gaussian process over the most promising untried points and
    those under way, and averages by how much the best untried one beats all others. The deviations
    are widened by how far off the model's latest predictions were: a model is believed as far as it
    has been right. And draws follow Student's t, as where the variance is known from few results:
    the best is often a config that the model did not foresee. A strategy's own surrogate may be
    shared; it is then told by the strategy.
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
        rows = self._candidates(beliefs, fresh)
        untried = len(rows) - len(self._under_way())
        gains = self._gains(beliefs, rows)
        left = gains[:, :untried].max(axis=1, initial=0.0)
        return _ahead(left, gains[:, untried:].max(axis=1, initial=0.0))

    def surplus(
        self, configs: Sequence[Config], gain: float, doubt: float = _DOUBTED
    ) -> list[Config]:
        """Those of the configs under way that need not be awaited: together they are expected to
        gain less than `gain` over the others. As many as possible, the least promising first.

        doubt: how many times the model's deviations are taken.
        """
        model = self.surrogate
        beliefs = model.beliefs()
        if beliefs is None:
            return []
        rows = self._candidates(beliefs, model.fresh()).tolist()
        gains = self._gains(beliefs, np.array(rows), doubt)
        awaited = {number: gains[:, rows.index(number)] for number in self._under_way()}
        lost = np.zeros(len(gains))
        offered = {n: c for c in configs if (n := model.points.find(c)) in awaited}
        surplus = []
        for number in sorted(offered, key=lambda n: float(awaited[n].mean())):
            lost = np.maximum(lost, awaited.pop(number))
            others = np.array([*awaited.values()]).max(axis=0, initial=0.0)
            if _ahead(lost, others) >= gain:
                break
            surplus.append(offered[number])
        return surplus

    def drop(self, configs: Sequence[Config]) -> None:
        """Configs are not under way any more, and were not tried."""
        numbers = (self.surrogate.points.find(config) for config in configs)
        self.surrogate.drop([number for number in numbers if number is not None])

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

    def _gains(self, beliefs: Beliefs, rows: Rows, doubt: float = 1.0) -> Floats:
        """Draws (rows) of what each candidate (columns) gains over the best, as ln of the ratio.

        doubt: how many times the model's deviations are taken.
        """
        # The same draws every time: the estimate moves with what is known, not with luck.
        rng = np.random.default_rng(0)
        covariance = self.surrogate.covariance(beliefs, rows)
        values, vectors = np.linalg.eigh(covariance)
        root = doubt * vectors * np.sqrt(np.maximum(values, 0.0))
        scale = np.sqrt(_TAILS / rng.chisquare(_TAILS, (_DRAWS, 1)))
        targets = beliefs.mean[rows] + scale * rng.standard_normal((_DRAWS, len(rows))) @ root.T
        works = rng.random((_DRAWS, len(rows))) < beliefs.works[rows]
        return np.where(works, self.surrogate.gains(beliefs, targets), 0.0)

    def _candidates(self, beliefs: Beliefs, fresh: Rows) -> Rows:
        """The untried points with the lowest bounds, then those under way."""
        bound = beliefs.mean[fresh] - 2.0 * beliefs.deviation[fresh]
        order = np.argsort(bound, kind="stable")[:_CANDIDATES]
        return np.concatenate([fresh[order], np.array(self._under_way(), dtype=np.int64)])

    def _under_way(self) -> list[int]:
        return list(self.surrogate.pending)[-_CANDIDATES:]


def _ahead(left: Floats, awaited: Floats) -> float:
    """Mean relative gain, over draws, of the best that is left over the best that is awaited."""
    return float(np.mean(-np.expm1(-np.maximum(0.0, left - awaited))))
