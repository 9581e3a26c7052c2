"""Budget `auto`: when a search ends, and which neighbours of its incumbent are tried before.

A model estimates the gain: by what share the best untried config is expected to improve on the
incumbent. The search has enough when the gain is below the budget's. Builds that are then still in
flight are dropped if they are expected to add little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from search_spaces.records import Config, Status
from search_spaces.space import BoundSpace
from tuner.base.tracing import trace_calls
from tuner.strategies.strategy import Strategy

if TYPE_CHECKING:
    from tuner.strategies.expected_gain import ExpectedGain

#: Results that a decision needs.
MINIMUM = 30
#: Trials after which a search ends that has timed nothing: compile-only, or all trials failed.
UNTIMED = 100
#: The gain is estimated again after this many results.
_EVERY = 4
#: Estimates in a row below the budget's gain after which builds in flight are dropped.
_CONFIRMATIONS = 3
#: Builds in flight are dropped if they are expected to gain less than this share of the budget's
#: gain. They were the most promising ones when they were ordered, so the share is small.
_SURPLUS = 0.02
#: A search that has dropped builds resumes only at this multiple of the budget's gain.
_RESUME = 2.0
#: A neighbour of the incumbent is tried if the model gives it at least this chance to win.
_CHANCE = 0.01
#: Records decisions that take longer than a millisecond.
_rule = trace_calls("stopping rule", "strategy", least_s=0.001)


class StoppingRule:
    """Follows the results of one search."""

    def __init__(self, space: BoundSpace, strategy: Strategy, gain: float) -> None:
        """gain: the expected relative improvement below which the search has enough."""
        self._space = space
        self._strategy = strategy
        self._gain = gain
        self._results = 0
        #: Whether any config was timed.
        self._timed = False
        #: `_results` at the last estimate of the gain.
        self._estimated_at = 0
        #: Estimates in a row below the budget's gain.
        self._below = 0
        #: `_results` when `surplus` looked last.
        self._surplus_at = 0
        #: `_results` and the number of builds in flight when `late` looked last.
        self._late_at = (0, 0)
        #: Whether builds were dropped.
        self._dropped = False

    @cached_property
    def _estimate(self) -> ExpectedGain:
        # Imported here: scipy is not needed until a search with such a budget begins.
        from tuner.strategies.expected_gain import ExpectedGain

        shared = getattr(self._strategy, "surrogate", None)
        return ExpectedGain(self._space, surrogate=shared)

    def record_start(self, config: Config) -> None:
        """A config became a trial."""
        self._estimate.start(config)

    def record_finish(self, config: Config, score: float | None, status: Status) -> None:
        """A trial has its result; `score` is ln(time in us), None without a time."""
        self._results += 1
        self._timed = self._timed or score is not None
        self._estimate.tell(config, score, status)

    @_rule
    def reached(self, trials: int, open_trials: int) -> bool:
        """Whether the search has enough. Further results may change that.

        trials: asked so far. open_trials: of these, the trials without a result.
        """
        if not self._timed and trials >= UNTIMED:
            return True
        fresh = self._results - self._estimated_at
        if fresh >= _EVERY or (fresh and not open_trials):
            self._estimated_at = self._results
            gain = self._estimate.expected_gain() if self._results >= MINIMUM else math.inf
            limit = self._gain * (_RESUME if self._dropped else 1.0)
            self._below = self._below + 1 if gain < limit else 0
        return self._below > 0

    @_rule
    def surplus(self, configs: Sequence[Config]) -> list[Config]:
        """Of the configs in flight, those not worth waiting for once the search has enough."""
        if not configs or self._results == self._surplus_at or self._below < _CONFIRMATIONS:
            return []
        self._surplus_at = self._results
        return self._note_dropped(self._estimate.surplus(configs, _SURPLUS * self._gain))

    @_rule
    def late(self, configs: Sequence[Config]) -> list[Config]:
        """The same where only late builds are in flight.

        A late build is dropped if it is expected to gain less than a config that was not tried.
        """
        seen = self._results, len(configs)
        if not configs or seen == self._late_at:
            return []
        self._late_at = seen
        return self._note_dropped(self._estimate.surplus(configs, self._gain, widening=1.0))

    def withdraw(self, configs: Sequence[Config]) -> None:
        """Trials were dropped before they had a result."""
        self._estimate.withdraw(configs)

    @_rule
    def polish(self, incumbent: Config | None) -> Config | None:
        """The untried neighbour of the incumbent with the best chance to win, if it has one."""
        near = [] if incumbent is None else self._space.neighbours(incumbent)
        chances = self._estimate.chances(near)
        best = max(range(len(near)), key=chances.__getitem__, default=None)
        return near[best] if best is not None and chances[best] >= _CHANCE else None

    def _note_dropped(self, dropped: list[Config]) -> list[Config]:
        self._dropped = self._dropped or bool(dropped)
        return dropped
