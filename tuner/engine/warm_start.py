"""Warm starts: which configs a search tries before it asks its strategy.

The order is: the default config; winners of neighbouring workloads of this run; for a strategy that
learns, the results of earlier runs, fastest first; winners of neighbouring workloads of earlier
runs. Workloads are neighbours by their distance in log space.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from search_spaces.records import Config, Workload, config_key
from search_spaces.space import BoundSpace
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import TrialTable

#: How many winners of neighbouring workloads are tried.
NEIGHBOURS = 3
#: The distance, in octaves, of two workloads that differ in a dtype or in the name of a dim.
_DIFFERENT = 16.0


def distance(a: Workload, b: Workload) -> float:
    """The sum of the octaves between equally named sizes. Other differences weigh heavily."""
    total = 0.0
    for name in {*a, *b}:
        x, y = a.get(name), b.get(name)
        if isinstance(x, int | float) and isinstance(y, int | float) and x > 0 and y > 0:
            total += abs(math.log2(x) - math.log2(y))
        elif x != y:
            total += _DIFFERENT
    return total


def nearest_winners(
    here: Workload, winners: Iterable[tuple[Workload, Config]], space: BoundSpace | None = None
) -> list[Config]:
    """The configs of the nearest workloads, each once, at most NEIGHBOURS.

    winners: at equal distance, in order of preference. space: if given, infeasible configs do not
    count.
    """
    found: dict[str, Config] = {}
    for _, config in sorted(winners, key=lambda pair: distance(here, pair[0])):
        if space is None or space.feasible(config):
            found.setdefault(config_key(config), config)
    return list(found.values())[:NEIGHBOURS]


#: The sources of trials that no strategy suggests: what `StartConfigs` gives.
START_SOURCES = frozenset({"default", "known", "warm"})


class StartConfigs:
    """The configs of one search that its strategy does not suggest."""

    def __init__(self, spec: TaskSpec) -> None:
        self._space = spec.space
        self._queue = deque(_start_configs(spec))

    def add_winners(self, configs: Iterable[Config], *, begun: bool) -> None:
        """Insert winners of this run after the default config. Invalid ones are skipped.

        begun: the search has trials, so the default config is no longer in the queue.
        """
        default = [self._queue.popleft()] if self._queue and not begun else []
        valid = [(one, "warm") for one in configs if self._space.why_invalid(one) is None]
        self._queue.extendleft(reversed([*default, *valid]))

    def next_untried(self, trials: TrialTable) -> tuple[Config, str] | None:
        """The next config without a trial and the name of its source; None at the end."""
        while self._queue:
            config, source = self._queue.popleft()
            if trials.of(config) is None:
                return config, source
        return None


def _start_configs(spec: TaskSpec) -> Iterator[tuple[Config, str]]:
    """Configs with their sources. A strategy that replays reaches known results by itself."""
    if spec.aim is not Aim.SEARCH:
        return
    yield spec.default, "default"
    if not spec.strategy.replays:
        known = sorted(spec.known, key=lambda r: (r.median_us is None, r.median_us or 0.0))
        yield from ((record.config, "known") for record in known)
    yield from ((c, "warm") for c in spec.neighbours if spec.space.feasible(c))
