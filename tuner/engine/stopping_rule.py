"""Budget `auto`: when a search has tried enough, and which neighbours of its incumbent are left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.strategies.strategy import Strategy

if TYPE_CHECKING:
    from tuner.strategies.expected_gain import ExpectedGain

#: Results before which nothing is concluded.
MINIMUM = 30
#: Trials after which a search ends that has timed nothing (compile-only, or all failed).
UNTIMED = 100
#: Builds under way are given up after so many looks in a row that found enough.
_CALM = 3
#: What a search that has given builds up is resumed for: so many times the gain that is enough.
_RESUMED = 2.0
#: Builds under way are not awaited if they are expected to gain less than this share of what is
#: enough. They were ordered as the most promising, and a model that was right would not need them.
_SURPLUS = 0.02
#: The expected gain is computed anew after so many results.
_EVERY = 4
#: A neighbour of the incumbent is not tried where the model gives it less of a chance to win.
_CHANCE = 0.01


class StoppingRule:
    """Follows one search. gain: the expected relative improvement below which it has enough."""

    def __init__(self, space: BoundSpace, strategy: Strategy, gain: float) -> None:
        self._space = space
        self._strategy = strategy
        self._gain = gain
        self._told = 0
        self._looked_at = 0
        self._timed = False
        self._calm = 0
        self._spared_at = 0
        self._late_at = (0, 0)
        self._spared = False

    @cached_property
    def _estimate(self) -> ExpectedGain:
        # Imported here: scipy is not needed until a search with such a budget begins.
        from tuner.strategies.expected_gain import ExpectedGain

        shared = getattr(self._strategy, "surrogate", None)
        return ExpectedGain(self._space, surrogate=shared)

    def asked(self, config: Config) -> None:
        self._estimate.start(config)

    def told(self, config: Config, score: float | None, status: Status) -> None:
        self._told += 1
        self._timed = self._timed or score is not None
        self._estimate.tell(config, score, status)

    def reached(self, trials: int, open_trials: int) -> bool:
        """Whether what is untried is not worth it; may change again as results come in.

        trials: how many were asked so far, of which open_trials have no result yet.
        """
        if not self._timed and trials >= UNTIMED:
            return True
        fresh = self._told - self._looked_at
        if fresh >= _EVERY or (fresh and not open_trials):
            self._looked_at = self._told
            left = self._estimate.expected_gain() if self._told >= MINIMUM else math.inf
            enough = left < self._gain * (_RESUMED if self._spared else 1.0)
            self._calm = self._calm + 1 if enough else 0
        return self._calm > 0

    def surplus(self, configs: Sequence[Config]) -> list[Config]:
        """Which of the configs under way are not worth waiting for, once enough is reached."""
        if not configs or self._told == self._spared_at or self._calm < _CALM:
            return []
        self._spared_at = self._told
        return self._given_up(self._estimate.surplus(configs, _SURPLUS * self._gain))

    def late(self, configs: Sequence[Config]) -> list[Config]:
        """Which of the last configs under way, whose builds take long, are not worth waiting for,
        once enough is reached: they are worth no more than others that were not begun."""
        seen = self._told, len(configs)
        if not configs or seen == self._late_at:
            return []
        self._late_at = seen
        return self._given_up(self._estimate.surplus(configs, self._gain, widening=1.0))

    def _given_up(self, configs: list[Config]) -> list[Config]:
        self._spared = self._spared or bool(configs)
        return configs

    def drop(self, configs: Sequence[Config]) -> None:
        """Configs were given up before they had a result."""
        self._estimate.withdraw(configs)

    def polish(self, incumbent: Config | None) -> Config | None:
        """The untried neighbour of the incumbent most likely to beat it, if that is possible."""
        near = [] if incumbent is None else self._space.neighbours(incumbent)
        chances = self._estimate.chances(near)
        best = max(range(len(near)), key=chances.__getitem__, default=None)
        return near[best] if best is not None and chances[best] >= _CHANCE else None
