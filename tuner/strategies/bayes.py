"""Bayesian optimisation over the listed space; made for many builds in flight and few in all."""

from __future__ import annotations

import random
from functools import cached_property

import numpy as np

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.candidate_points import Points
from tuner.strategies.surrogate import Surrogate

#: Points of the first sample that each further one is chosen from: this share, at least so many.
_SHARE, _LEAST = 8, 24


class BayesStrategy:
    """Asks for the point of the greatest expected improvement under a Gaussian process.

    initial: points spread over the space before the model is asked. Expected improvement: Jones,
    Schonlau and Welch, J. Global Optimization 13 (1998). Pending points count as asked for the
    deviation and leave the mean alone (as in GP-BUCB, Desautels et al., JMLR 2014), so asking again
    before anything is told goes elsewhere. Never suggests a config twice, nor one that was told.
    """

    replays = False

    def __init__(
        self,
        space: BoundSpace,
        seed: int = 0,
        *,
        name: str = "bayes",
        initial: int = 15,
    ) -> None:
        if initial < 1:
            raise TypeError(f"initial={initial} must be positive")
        self.name = name
        self._space = space
        self._seed = seed
        self._initial = initial
        self._rng = random.Random(seed)

    @cached_property
    def surrogate(self) -> Surrogate:
        """The model. Made when first used: a campaign makes the strategies of all its tasks."""
        return Surrogate(self._space, self._seed)

    @cached_property
    def _first(self) -> list[int]:
        return _spread(self.surrogate.points, self._rng, self._initial)

    def under_way(self, config: Config) -> None:
        number = self.surrogate.points.add(config)
        if number is not None:
            self.surrogate.ask(number)

    def ask(self, n: int) -> list[Config]:
        configs: list[Config] = []
        for _ in range(n):
            number = self._next()
            if number is None:
                break
            self.surrogate.ask(number)
            configs.append(dict(self.surrogate.points.configs[number]))
        return configs

    def tell(self, config: Config, score: float | None, status: Status) -> None:
        self.surrogate.tell(config, score, status)

    def _next(self) -> int | None:
        model = self.surrogate
        # What was told without being asked (the default, warm starts) is part of the sample.
        while self._first:
            number = self._first.pop(0)
            if number not in model.told and number not in model.pending:
                return number
        beliefs = model.beliefs()
        fresh = model.fresh()
        if not len(fresh):
            return self._unlisted()
        if beliefs is None:
            return int(self._rng.choice(fresh.tolist()))
        return int(fresh[np.argmax(model.log_improvement(beliefs, fresh))])

    def _unlisted(self) -> int | None:
        """Any config not asked yet of a space too large to list."""
        points = self.surrogate.points
        if points.complete:
            return None
        found = (points.add(c) for c in self._space.enumerate() if points.find(c) is None)
        return next(found, None)


def _spread(points: Points, rng: random.Random, n: int) -> list[int]:
    """Points far from each other: each one the farthest from the former, out of a few at random."""
    x = points.x
    if not len(x):
        return []
    chosen = [rng.randrange(len(x))]
    gap = ((x - x[chosen[0]]) ** 2).sum(1)
    few = min(len(x), max(_LEAST, len(x) // _SHARE))
    while len(chosen) < min(n, len(x)):
        offered = rng.sample(range(len(x)), few)
        chosen.append(max(offered, key=lambda i: (gap[i], i)))
        gap = np.minimum(gap, ((x - x[chosen[-1]]) ** 2).sum(1))
    return list(dict.fromkeys(chosen))
