"""Which config one search tries next, and when it asks no more.

In this order: a replacement for a default that fails, the start configs, the suggestions of the
strategy, and at the end neighbours of the incumbent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from search_spaces.records import Config, Status, config_key
from tuner.engine import warm_start
from tuner.engine.ranking import Ranking
from tuner.engine.stopping_rule import StoppingRule
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import Trial, TrialTable
from tuner.engine.warm_start import StartConfigs
from tuner.strategies.strategy import PendingAware

#: ln(time / incumbent's time) that is assumed of a variant that was not built because it has to
#: spill: on an H200, the fastest of 264 such configs of matmul took 3 times as long as the winner.
_SPILLS = math.log(3.0)
#: A strategy may repeat itself this often in a row. Then any config not yet tried is taken.
_REPEATS = 20


class Asker:
    """Asks the configs of one search."""

    def __init__(self, spec: TaskSpec, trials: TrialTable, ranking: Ranking) -> None:
        #: Seconds to keep free for finals before the end of the run.
        self.finals_s = spec.budget.finals_s
        #: The other half is for configs of the bits that are chosen then.
        self._budget = spec.budget.halve() if spec.awaits_bits else spec.budget
        #: No further config is asked, unless the default config fails.
        self.stopped = False
        #: The end of the run has stopped it.
        self.cut_short = False
        #: The last attempt to ask found no config. Later results may change that.
        self.waiting_for_results = False
        self._spec = spec
        self._trials = trials
        self._ranking = ranking
        #: Not even a replacement for a failed default is asked: stopped, or out of time.
        self._closed = False
        #: The engine's clock when the first config was asked, and when the last one was.
        self._started: float | None = None
        self._now = 0.0
        self._start = StartConfigs(spec)
        #: Whether more is tried than the start configs, by their least time; None: it is.
        self._pays: Callable[[float], bool] | None = None
        gain = spec.budget.gain
        self._stopping_rule = (
            None if gain is None else StoppingRule(spec.space, spec.strategy, gain)
        )

    def next_trial(self, now: float) -> Trial | None:
        """The next new trial, or None while there is nothing to ask (see `exhausted`)."""
        if self._started is None:
            self._started = now
        self._now = now
        trial = self._next(now - self._started)
        self.waiting_for_results = trial is None
        return trial

    def add_winners(self, configs: Iterable[Config]) -> None:
        """Try winners of neighbouring workloads next, after the default config.

        They need not be points of the space, as long as they are valid here.
        """
        self._start.add_winners(configs, begun=bool(self._trials))

    def compare_first(self, pays: Callable[[float], bool]) -> None:
        """Try the start configs, and more only if `pays` says so of the least time in us."""
        self._pays = pays

    @property
    def searches(self) -> bool:
        """Whether more is tried than the start configs, as far as is known."""
        return self._pays is None

    @property
    def only_compares(self) -> bool:
        """Whether nothing but start configs was asked so far."""
        return self._pays is not None or not self._trials

    def learn(self, trial: Trial) -> None:
        """Pass the result of a trial to the strategy and the stopping rule."""
        if self._is_outside(trial):
            return
        result = self._result_of(trial)
        self._spec.strategy.tell(*result)
        if self._stopping_rule is not None:
            self._stopping_rule.record_finish(*result)

    @property
    def exhausted(self) -> bool:
        """Whether the search is over: nothing is asked any more and no trial is open."""
        return self.stopped and not self._trials.open and self._default_replacement() is None

    def stop(self) -> None:
        """Ask no more, and drop every trial that no worker has."""
        self.stopped = self._closed = True
        self._trials.drop_idle()

    # -- inside --------------------------------------------------------------------------------
    def _next(self, searched_s: float) -> Trial | None:
        self._closed = self._closed or self._budget.spent(
            now=self._now,
            searched_s=searched_s,
            device_s=self._trials.device_s,
            finals_s=self.finals_s,
        )
        replacement = self._default_replacement()
        if replacement is not None:
            return self._admit(replacement, "default")
        budget = self._budget
        left = math.inf if budget.trials is None else budget.trials - len(self._trials)
        if self.stopped or self._closed or left <= 0:
            over = budget.is_over(self._now, self.finals_s)
            self.cut_short = self.cut_short or (over and left > 0 and not self.stopped)
            self.stopped = True
            return None
        first = self._start.next_untried(self._trials)
        if first is not None:
            return self._admit(*first)
        if self._pays is not None:
            if self._trials.open:
                return None  # their times decide whether there is a search
            best = self._ranking.incumbent
            if not self._pays(math.inf if best is None else math.exp(best.score or 0.0)):
                self.stopped = True
                return None
            self._pays = None
        rule = self._stopping_rule
        if rule is not None and rule.reached(len(self._trials), self._trials.open):
            return self._polish_by_chance(rule)
        if left <= budget.polish:
            return self._polish()
        suggested = self._ask()
        if suggested is None:
            self.stopped = True
            return None
        return self._admit(suggested, self._spec.strategy.name)

    def _default_replacement(self) -> Config | None:
        """A listed config to ask because the default fails, even beyond the budget of trials."""
        if self._closed or self._spec.compile_only or self._spec.aim is not Aim.SEARCH:
            return None
        return warm_start.next_listed(self._spec, self._trials)

    def _admit(self, config: Config, source: str) -> Trial:
        trial = self._trials.add(config, source, self._now)
        if self._is_outside(trial):
            return trial
        strategy = self._spec.strategy
        if self._stopping_rule is not None:
            self._stopping_rule.record_start(config)
        if source != strategy.name and isinstance(strategy, PendingAware):
            strategy.start(config)
        return trial

    def _is_outside(self, trial: Trial) -> bool:
        """Whether a config is valid here and no point of the space, so that no model knows it."""
        return trial.strategy == "warm" and not self._spec.space.feasible(trial.config)

    def _list_ranked(self) -> Iterator[Trial]:
        """The ranked trials of points of the space, fastest first."""
        return (each for each in self._ranking.trials() if not self._is_outside(each))

    def _ask(self) -> Config | None:
        """A config without a trial. Results of repeated suggestions go to the strategy at once."""
        strategy = self._spec.strategy
        tries = 10**9 if strategy.replays else _REPEATS
        for _ in range(tries):
            suggested = strategy.ask(1)
            if not suggested:
                return None
            trial = self._trials.of(suggested[0])
            if trial is None:
                return suggested[0]
            if trial.record is not None:
                strategy.tell(*self._result_of(trial))
        feasible = self._spec.space.enumerate()
        return next((c for c in feasible if self._trials.of(c) is None), None)

    def _result_of(self, trial: Trial) -> tuple[Config, float | None, Status]:
        record, best = trial.record, self._ranking.incumbent
        assert record is not None
        if record.must_spill and best is not None and best.score is not None:
            # A failure would not tell the model that its neighbours are slow, too.
            return record.config, best.score + _SPILLS, Status.CORRECT
        return record.config, trial.score, record.status

    def _polish(self) -> Trial | None:
        """An untried neighbour of the incumbent, or of the next best; None while results are
        awaited."""
        if self._trials.open:
            return None
        for trial in self._list_ranked():
            for config in self._spec.space.neighbours(trial.config):
                if self._trials.of(config) is None:
                    return self._admit(config, "polish")
        self.stopped = True
        return None

    def _polish_by_chance(self, rule: StoppingRule) -> Trial | None:
        """An untried neighbour of the incumbent that may still win.

        None while results are awaited: they may show that the search has to go on.
        """
        best = next(self._list_ranked(), None)
        config = rule.polish(best.config if best else None)
        if config is not None:
            return self._admit(config, "polish")
        self._drop_surplus(rule)
        self.stopped = not self._trials.open
        return None

    def _drop_surplus(self, rule: StoppingRule) -> None:
        """Drop trials in build that are not worth waiting for. Nothing else is left to ask."""
        late = self._trials.list_late_builds(self._now)
        building = late or self._trials.list_building()
        configs = [trial.config for trial in building if not self._is_outside(trial)]
        dropped = rule.late(configs) if late else rule.surplus(configs)
        if dropped:
            rule.withdraw(dropped)
        for config in dropped:
            self._trials.drop(self._trials[config_key(config)])
            if isinstance(self._spec.strategy, PendingAware):
                self._spec.strategy.withdraw(config)
