"""Warm starts: which configs a search tries before it asks its strategy.

The order is: the default config; winners of neighbouring workloads of this run; for a strategy that
learns, the results of earlier runs, fastest first; winners of neighbouring workloads of earlier
runs. Workloads are neighbours by their distance in log space.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from results_db.stored_records import SelectionRecord
from search_spaces.records import Config, Status, Workload, config_key
from search_spaces.space import BoundSpace
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import Trial, TrialTable

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


# -- the config that a task's winner is compared with: what its users run today --------------------
# That is the kernel's default. Where the default fails, it is what `triton.autotune` would choose:
# the fastest correct one of the kernel's listed configs, as far as they were measured.
#: Part of every message about a default that fails; `default_failed` looks for it.
_FAILS = "config fails "


def default_of(
    spec: TaskSpec, trials: TrialTable, finalists: Sequence[Trial] | None = None
) -> Trial | None:
    """The trial of the default config or, once that has failed, the fastest correct listed one.

    finalists: fastest first; if given, the first listed one of them is taken. The failed trial is
    returned where no listed config is correct.
    """
    own = trials.of(spec.default)
    if own is None or not _failed(own):
        return own
    listed = [trials.of(config) for config in spec.listed]
    correct = [trial for trial in listed if trial is not None and trial.score is not None]
    if finalists is not None:
        numbers = {trial.number for trial in correct}
        return next((trial for trial in finalists if trial.number in numbers), own)
    return min(
        correct, key=lambda trial: (spec.dropped_early(trial.record), trial.score), default=own
    )


def next_listed(spec: TaskSpec, trials: TrialTable) -> Config | None:
    """The listed config to ask next: the default has failed and no listed config is correct yet.

    None where no listed config has to be asked.
    """
    own = trials.of(spec.default)
    if own is None or not _failed(own):
        return None
    untried = None
    for config in spec.listed:
        trial = trials.of(config)
        if trial is None:
            untried = untried or config
        elif not _failed(trial):
            return None
    return untried


def failed_default_note(spec: TaskSpec, trials: TrialTable, default: Trial | None) -> str:
    """The sentence of a selection's reason about a default that fails; empty if it does not."""
    own = trials.of(spec.default)
    if own is None or own.record is None or not _failed(own):
        return ""
    why = own.record.message.splitlines()[0] if own.record.message else ""
    failed = f"{own.record.status}: {why}" if why else f"{own.record.status}"
    if default is None or default is own:
        return f"there is no default to compare with, for the default {_FAILS}({failed:.160})"
    return (
        f"the first listed {_FAILS}({failed:.160}), so the default is the fastest correct "
        "listed one, as triton.autotune would choose"
    )


def default_failed(selection: SelectionRecord) -> bool:
    """Whether a selection's reason holds a `failed_default_note`."""
    return _FAILS in selection.reason


def _failed(trial: Trial) -> bool:
    return trial.record is not None and trial.record.status is not Status.CORRECT
