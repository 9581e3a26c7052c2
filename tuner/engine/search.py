"""One task's search: which configs are asked next, and what the results mean for it.

The search holds state only. The engine calls it in the order of events.
"""

from __future__ import annotations

import bisect
import heapq
import logging
import math
from collections.abc import Iterable, Sequence

from results_db.stored_records import Source, TrialRecord
from search_spaces.records import Config, Status, config_key
from tuner.engine import default_config, trial_records
from tuner.engine.ranking import Ranking
from tuner.engine.stopping_rule import StoppingRule
from tuner.engine.task_spec import TaskSpec
from tuner.engine.trial import Trial, TrialState
from tuner.engine.trial_table import TrialTable
from tuner.engine.warm_start import StartConfigs, nearest_winners
from tuner.strategies.strategy import PendingAware

#: A strategy may repeat itself this often in a row. Then any config not yet tried is taken.
_REPEATS = 20
#: Local memory per thread above which a variant is measured after all others.
HEAVY_SPILL_BYTES = 256
#: How many of the best trials are built at the check size before the winner is known.
_EARLY_CHECKS = 3
#: A build is late when it takes this many times the median build.
_LATE = 2.5
_log = logging.getLogger(__name__)


class Search:
    """The trials of a task, their ranking, and the order in which configs are asked."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.trials = TrialTable()
        #: The trial that is measured for each binary, by digest.
        self.by_binary: dict[str, Trial] = {}
        #: Digests of binaries that were verified on a device of this kind.
        self.verified: set[str] = set()
        #: Device seconds of all results.
        self.device_s = 0.0
        #: The engine's clock when the first config was asked.
        self.started: float | None = None
        #: Seconds to keep free for finals before the end of the run.
        self.finals_s = spec.budget.finals_s
        #: No further config is asked, unless the default config fails.
        self.stopped = False
        #: The last attempt to ask found no config. Later results may change that.
        self.waiting_for_results = False
        self._ranking = Ranking()
        #: Not even a replacement for a failed default is asked: stopped, or out of time.
        self._closed = False
        #: `stop` was called: a trial that no worker has is dropped.
        self._drops_idle = False
        #: Durations of builds in seconds, sorted.
        self._build_s: list[float] = []
        self._now = 0.0
        self._known = {config_key(r.config): r for r in spec.known}
        self._start = StartConfigs(spec)
        gain = spec.budget.gain
        self._stopping_rule = (
            None if gain is None else StoppingRule(spec.space, spec.strategy, gain)
        )
        for record in spec.finished:
            self._restore(record)

    # -- asking --------------------------------------------------------------------------------
    def next_trial(self, now: float) -> Trial | None:
        """The next new trial, or None while there is nothing to ask (see `exhausted`)."""
        if self.started is None:
            self.started = now
        self._now = now
        trial = self._next(now)
        self.waiting_for_results = trial is None
        return trial

    def add_winners(self, configs: Iterable[Config]) -> None:
        """Try winners of neighbouring workloads next, after the default config."""
        self._start.add_winners(configs, begun=bool(self.trials))

    @property
    def open_trials(self) -> int:
        """How many trials have no result."""
        return self.trials.open

    @property
    def done(self) -> int:
        """How many trials have a result."""
        return self.trials.count(TrialState.DONE)

    @property
    def exhausted(self) -> bool:
        """Whether the search is over: nothing is asked any more and no trial is open."""
        return self.stopped and self.open_trials == 0 and self._default_replacement() is None

    @property
    def out_of_time(self) -> bool:
        """Whether the run's search time was over before the first trial."""
        return self.spec.budget.ends_at is not None and not self.trials

    def stop(self) -> None:
        """Ask no more, and drop every trial that no worker has."""
        self.stopped = self._closed = self._drops_idle = True
        for state in (TrialState.ASKED, TrialState.READY, TrialState.WAITING):
            for trial in self.trials.in_state(state):
                self._drop(trial)

    def requeue(self, trial: Trial, state: TrialState) -> None:
        """Put a trial whose job gave no result back into the queue, unless the search was stopped.

        state: ASKED to build it again, READY to measure it again.
        """
        self.trials.move(trial, state)
        if self._drops_idle:
            self._drop(trial)

    # -- results -------------------------------------------------------------------------------
    def finish(self, trial: Trial, record: TrialRecord) -> None:
        """Take the result of a trial: rank it and pass it to the strategy."""
        self.trials.move(trial, TrialState.DONE)
        trial.record = record
        self.device_s += record.device_s
        if record.build_s > 0:
            bisect.insort(self._build_s, record.build_s)
        self._learn(trial, record)
        self._release_artifacts(trial)

    def known_result(self, trial: Trial) -> TrialRecord | None:
        """The result of an earlier run for this config, as a record of this trial."""
        known = self._known.get(config_key(trial.config))
        return None if known is None else trial_records.of_known(self.spec, trial, known)

    def kept_time(self, trial: Trial) -> TrialRecord | None:
        """The time another revision has of this trial's binary. The trial is only verified then."""
        if trial.artifact is None or self.spec.compile_only:
            return None
        return self.spec.timed.get(trial.artifact.binary_hash)

    @property
    def incumbent(self) -> Trial | None:
        """The fastest correct trial so far."""
        return self._ranking.incumbent

    def rank_trials(self) -> list[Trial]:
        """Trials that may win, fastest first; ties by number."""
        return self._ranking.trials()

    def drop_incumbent(self) -> None:
        """Take the incumbent out of the ranking: it cannot be built or measured any more."""
        self._ranking.drop_incumbent()

    def default(self) -> Trial | None:
        """The trial of the default config, or of its replacement: see `default_config`."""
        return default_config.default_of(self.spec, self.trials)

    # -- what to measure and to check next -----------------------------------------------------
    def next_ready(self, n: int) -> list[Trial]:
        """Up to `n` trials to measure next, in the order asked.

        Those wait whose jobs were lost, and those that spill heavily.

        Spilling a little sometimes pays. On an H200 144 of 968 matmul configs spill, all of them
        512 bytes per thread or more; the best of these takes 3.6 times the incumbent's time.
        """
        ready = self.trials.in_state(TrialState.READY)
        return heapq.nsmallest(n, ready, key=lambda one: (one.attempt, _spills(one), one.number))

    def without_check(self, trials: Sequence[Trial]) -> list[Trial]:
        """The first of these trials that still have to be built at the check size."""
        first = trials[:_EARLY_CHECKS] if self.spec.check_size is not None else []
        return [trial for trial in first if trial.check_artifact is None]

    def checks_to_build(self) -> list[Trial]:
        """Trials to build at the check size while the last results are awaited."""
        awaiting = self.waiting_for_results and self.open_trials
        return self.without_check(self.rank_trials()) if awaiting else []

    # -- the next config -----------------------------------------------------------------------
    def _next(self, now: float) -> Trial | None:
        budget = self.spec.budget
        searched_s = 0.0 if self.started is None else now - self.started
        self._closed = self._closed or budget.spent(
            now=now,
            searched_s=searched_s,
            device_s=self.device_s,
            finals_s=self.finals_s,
        )
        replacement = self._default_replacement()
        if replacement is not None:
            return self._admit(replacement, "default")
        if self.stopped or self._closed or self._all_asked():
            self.stopped = True
            return None
        first = self._start.next_untried(self.trials)
        if first is not None:
            return self._admit(*first)
        rule = self._stopping_rule
        if rule is not None and rule.reached(len(self.trials), self.open_trials):
            return self._polish_by_chance(rule)
        if self._polishing():
            return self._polish()
        suggested = self._ask()
        if suggested is None:
            self.stopped = True
            return None
        return self._admit(suggested, self.spec.strategy.name)

    def _all_asked(self) -> bool:
        limit = self.spec.budget.trials
        return limit is not None and len(self.trials) >= limit

    def _default_replacement(self) -> Config | None:
        """A listed config to ask because the default fails, even beyond the budget of trials."""
        if self._closed or self.spec.compile_only:
            return None
        return default_config.next_listed(self.spec, self.trials)

    def _admit(self, config: Config, source: str) -> Trial:
        trial = self.trials.add(config, source, self._now)
        strategy = self.spec.strategy
        if self._stopping_rule is not None:
            self._stopping_rule.record_start(config)
        if source != strategy.name and isinstance(strategy, PendingAware):
            strategy.start(config)
        return trial

    def _ask(self) -> Config | None:
        """A config without a trial. Results of repeated suggestions go to the strategy at once."""
        strategy = self.spec.strategy
        tries = 10**9 if strategy.replays else _REPEATS
        for _ in range(tries):
            suggested = strategy.ask(1)
            if not suggested:
                return None
            trial = self.trials.of(suggested[0])
            if trial is None:
                return suggested[0]
            if trial.record is not None:
                strategy.tell(suggested[0], trial.score, trial.record.status)
        feasible = self.spec.space.enumerate()
        return next((c for c in feasible if self.trials.of(c) is None), None)

    def _polishing(self) -> bool:
        budget = self.spec.budget
        if not budget.polish or budget.trials is None:
            return False
        return len(self.trials) >= budget.trials - budget.polish

    def _polish(self) -> Trial | None:
        """An untried neighbour of the incumbent, or of the next best; None while results are
        awaited."""
        if self.open_trials:
            return None
        for trial in self.rank_trials():
            for config in self.spec.space.neighbours(trial.config):
                if self.trials.of(config) is None:
                    return self._admit(config, "polish")
        self.stopped = True
        return None

    def _polish_by_chance(self, rule: StoppingRule) -> Trial | None:
        """An untried neighbour of the incumbent that may still win.

        None while results are awaited: they may show that the search has to go on.
        """
        config = rule.polish(self.incumbent.config if self.incumbent else None)
        if config is not None:
            return self._admit(config, "polish")
        self._drop_surplus(rule)
        self.stopped = not self.open_trials
        return None

    def _drop_surplus(self, rule: StoppingRule) -> None:
        """Drop trials in build that are not worth waiting for. Nothing else is left to ask."""
        building = [
            *self.trials.in_state(TrialState.ASKED),
            *self.trials.in_state(TrialState.BUILDING),
        ]
        usual_s = self._build_s[len(self._build_s) // 2] if self._build_s else math.inf
        late = all(self._now - trial.asked_at > _LATE * usual_s for trial in building)
        configs = [trial.config for trial in building]
        only_builds_left = late and len(building) == self.open_trials
        dropped = rule.late(configs) if only_builds_left else rule.surplus(configs)
        for config in dropped:
            self._drop(self.trials[config_key(config)])
        if dropped:
            rule.withdraw(dropped)
        if isinstance(self.spec.strategy, PendingAware):
            for config in dropped:
                self.spec.strategy.withdraw(config)

    def _drop(self, trial: Trial) -> None:
        """End a trial without a result, as if it had not been asked."""
        self.trials.drop(trial)
        if trial.artifact and self.by_binary.get(trial.artifact.binary_hash) is trial:
            del self.by_binary[trial.artifact.binary_hash]

    # -- results, inside -----------------------------------------------------------------------
    def _restore(self, record: TrialRecord) -> None:
        trial = self.trials.restore(record)
        self.device_s += record.device_s
        self._learn(trial, record)

    def _learn(self, trial: Trial, record: TrialRecord) -> None:
        if record.status is Status.CORRECT and record.median_us:
            trial.score = math.log(record.median_us)
            if self._may_win(record):
                self._rank(trial)
        if record.binary_hash and record.source != Source.BINARY:
            self.by_binary.setdefault(record.binary_hash, trial)
            if record.status is Status.CORRECT and record.verified_by:
                self.verified.add(record.binary_hash)
        self.spec.strategy.tell(record.config, trial.score, record.status)
        if self._stopping_rule is not None:
            self._stopping_rule.record_finish(record.config, trial.score, record.status)

    def _rank(self, trial: Trial) -> None:
        before = self.incumbent
        self._ranking.add(trial)
        if self.incumbent is not before:
            time_us = math.exp(trial.score or 0.0)
            _log.debug("%s: incumbent is trial %d, %.3f us", self.spec.label, trial.number, time_us)

    def _may_win(self, record: TrialRecord) -> bool:
        """Whether a time is ranked.

        The time of a dropped candidate is not: with an outlier among the incumbent's samples, its
        few samples would look like a new best. The time of a duplicate binary is ranked once, for
        the trial that was measured.
        """
        return record.source != Source.BINARY and not self.spec.dropped_early(record)

    def _release_artifacts(self, trial: Trial) -> None:
        """Free the artifacts of trials that cannot reach the finals.

        The result of `trial` displaces at most one trial whose artifact was kept. The default
        config takes part in the finals however slow it is.
        """
        kept = 2 * self.spec.finalists
        record = trial.record
        if record is None or not self._may_win(record) or not self._ranking.is_among(trial, kept):
            _release(trial)
        elif (displaced := self._ranking.at(kept)) is not None:
            _release(displaced)


def winners_near(opening: TaskSpec, searches: Iterable[Search]) -> list[Config]:
    """Incumbents of finished searches of the same kernel and device, nearest workload first."""
    winners = [
        (search.spec.workload, search.incumbent.config)
        for search in sorted(searches, key=lambda search: search.spec.task_id)
        if opening.same_kernel_and_device(search.spec)
        and search.exhausted
        and search.incumbent is not None
    ]
    return nearest_winners(opening.workload, winners, opening.space)


def _release(trial: Trial) -> None:
    if trial.score is None or trial.strategy != "default":
        trial.artifact = None


def _spills(trial: Trial) -> bool:
    return trial.artifact is not None and trial.artifact.facts.spill_bytes > HEAVY_SPILL_BYTES
