"""One task's search: which configs were asked, what became of them, who is incumbent.

Pure state. The engine calls it in one place, in the order of events.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from results_db.records import TrialRecord
from search_spaces.records import Config, Status, config_key
from tuner.engine.default_config import default_of, next_listed
from tuner.engine.stopping_rule import StoppingRule
from tuner.engine.trial import State, TaskSpec, Trial
from tuner.strategies.strategy import PendingAware

#: A strategy that learns may repeat itself this often before any unseen config is taken.
_REPEATS = 20
#: Local memory per thread above which a binary is measured after all others.
HEAVY_SPILL_BYTES = 256
#: So many likely winners are built at their odd size before it is known who wins.
_CHECKED_AHEAD = 3
#: A build is late that takes so many times as long as half of the others did.
_LATE = 2.5


class Search:
    """The asked trials of a task and the order in which new ones are asked."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.trials: dict[str, Trial] = {}
        self.by_binary: dict[str, Trial] = {}
        self.verified: set[str] = set()
        self.incumbent: Trial | None = None
        self.device_s = 0.0
        self.started: float | None = None
        self.stopped = False
        #: Not even for a default is anything asked any more.
        self._given_up = False
        #: Nothing was left to ask the last time, unless results to come change that.
        self.ending = False
        self._states: dict[State, dict[int, Trial]] = {state: {} for state in State}
        self._numbers: set[int] = set()
        #: Numbers no trial has had, this run's or a resumed one's, in order.
        self._unused = itertools.filterfalse(self._numbers.__contains__, itertools.count())
        #: (score, number, trial) of what is timed and correct, in this order.
        self._timed: list[tuple[float, int, Trial]] = []
        #: Seconds that builds took, in order.
        self._build_s: list[float] = []
        self._now = 0.0
        self._known = {config_key(r.config): r for r in spec.known}
        self._first = deque(_first_configs(spec))
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
        self.ending = trial is None
        return trial

    def likely(self, trials: Sequence[Trial]) -> list[Trial]:
        """Of trials in their order, those likely to win that are not built at their odd size."""
        ahead = trials[:_CHECKED_AHEAD] if self.spec.check_size is not None else []
        return [trial for trial in ahead if trial.check_artifact is None]

    def warm(self, configs: Iterable[Config]) -> None:
        """Try these next, in this order, after the default: winners of neighbouring workloads.

        To be called when the task opens. What is infeasible here or was asked already is skipped.
        """
        default = [self._first.popleft()] if self._first and not self.trials else []
        fitting = [(config, "warm") for config in configs if self.spec.space.feasible(config)]
        self._first.extendleft(reversed([*default, *fitting]))

    @property
    def open_trials(self) -> int:
        return len(self.trials) - len(self._states[State.DONE])

    @property
    def exhausted(self) -> bool:
        """Nothing will be asked any more and nothing is in flight."""
        return self.stopped and self.open_trials == 0 and self._wanted() is None

    @property
    def remark(self) -> str | None:
        """The note on a task that had no time; None for any other."""
        timed = self.spec.budget.ends_at is not None
        return "nothing was tried: the run was out of time" if timed and not self.trials else None

    @property
    def done(self) -> int:
        return len(self._states[State.DONE])

    def in_state(self, state: State) -> list[Trial]:
        return list(self._states[state].values())

    def first(self, state: State) -> Trial | None:
        """The trial in that state that was asked first."""
        numbers = self._states[state]
        return numbers[min(numbers)] if numbers else None

    def next_ready(self, n: int) -> list[Trial]:
        """Up to `n` trials to measure next, in the order asked; those that spill heavily wait.

        Spilling a little sometimes pays. On an H200 144 of 968 matmul configs spill, all of them
        512 bytes per thread or more; the best of these takes 3.6 times the incumbent's time.
        """
        ready = self.in_state(State.READY)
        return heapq.nsmallest(n, ready, key=lambda trial: (_spills(trial), trial.number))

    def count(self, state: State) -> int:
        return len(self._states[state])

    def move(self, trial: Trial, state: State) -> None:
        """The only way a trial changes its state."""
        self._states[trial.state].pop(trial.number, None)
        self._states[state][trial.number] = trial
        trial.state = state

    def stop(self) -> None:
        """Ask no more, and give up what is not being worked on."""
        self.stopped = self._given_up = True
        for state in (State.ASKED, State.READY, State.WAITING):
            for trial in self.in_state(state):
                self._drop(trial)

    def known_result(self, trial: Trial) -> TrialRecord | None:
        """A result of an earlier run for this config, as a record of this trial."""
        known = self._known.get(config_key(trial.config))
        if known is None:
            return None
        return replace(
            known,
            attempt_id=f"{self.spec.task_id}:{trial.number}:reused",
            number=trial.number,
            source="reused",
            copied_from=known.attempt_id,
            strategy=trial.strategy,
            build_s=0.0,
            device_s=0.0,
            timing_s=0.0,
        )

    def kept_time(self, trial: Trial) -> TrialRecord | None:
        """The time another revision has of this trial's binary, which then is verified only."""
        if trial.artifact is None or self.spec.compile_only:
            return None
        return self.spec.timed.get(trial.artifact.binary_hash)

    # -- results -------------------------------------------------------------------------------
    def finish(self, trial: Trial, record: TrialRecord) -> None:
        """The trial is over: remember it, tell the strategy, maybe crown a new incumbent."""
        self.move(trial, State.DONE)
        trial.record = record
        trial.screened_against = None
        self.device_s += record.device_s
        if record.build_s > 0:
            bisect.insort(self._build_s, record.build_s)
        self._learn(trial, record)
        self._drop_artifacts(trial)

    def ranked(self) -> list[Trial]:
        """Trials that may be the best, fastest first; ties by number."""
        return [trial for _, _, trial in self._timed]

    def default(self) -> Trial | None:
        """What users run today, as far as it was tried: see `tuner.engine.default_config`."""
        return default_of(self)

    def hopeless(self, trial: Trial) -> bool:
        """Whether a trial was dropped from its screening: its few samples say little."""
        samples = len(trial.record.samples_us) if trial.record else 0
        return 0 < samples < max(self.spec.protocol.pairs)

    def unchecked(self) -> list[Trial]:
        """Who may be built at its odd size already, while the last results are awaited."""
        return self.likely(self.ranked()) if self.ending and self.open_trials else []

    def dethrone(self) -> None:
        """The incumbent cannot be had any more: it is out of the ranking, and the next one is
        it."""
        if self.incumbent is not None:
            self.incumbent.score = None
            self._timed = [entry for entry in self._timed if entry[2] is not self.incumbent]
        self.incumbent = self._timed[0][2] if self._timed else None

    # -- inside --------------------------------------------------------------------------------
    def _next(self, now: float) -> Trial | None:
        self._given_up = self._given_up or self._over_time(now)
        wanted = self._wanted()
        if wanted is not None:
            return self._admit(wanted, "default")
        trials = self.spec.budget.trials
        if self.stopped or self._given_up or (trials is not None and len(self.trials) >= trials):
            self.stopped = True
            return None
        while self._first:
            config, source = self._first.popleft()
            if config_key(config) not in self.trials:
                return self._admit(config, source)
        if self._stopping_rule is not None and self._stopping_rule.reached(
            len(self.trials), self.open_trials
        ):
            return self._polish_likely(self._stopping_rule)
        if self._polishing():
            return self._polish()
        suggested = self._ask()
        if suggested is None:
            self.stopped = True
            return None
        return self._admit(suggested, self.spec.strategy.name)

    def _restore(self, record: TrialRecord) -> None:
        trial = Trial(record.number, record.config, record.strategy, record=record)
        self.trials[config_key(record.config)] = trial
        self.move(trial, State.DONE)
        self._numbers.add(record.number)
        self.device_s += record.device_s
        self._learn(trial, record)

    def _learn(self, trial: Trial, record: TrialRecord) -> None:
        if record.status is Status.CORRECT and record.median_us:
            trial.score = math.log(record.median_us)
            if self._contends(trial, record):
                bisect.insort(self._timed, (trial.score, trial.number, trial))
                if self.incumbent is None or trial.score < (self.incumbent.score or math.inf):
                    self.incumbent = trial
        if record.binary_hash and record.source in ("measured", "built", "reused", "verified"):
            self.by_binary.setdefault(record.binary_hash, trial)
            if record.status is Status.CORRECT and record.verified_by:
                self.verified.add(record.binary_hash)
        self.spec.strategy.tell(record.config, trial.score, record.status)
        if self._stopping_rule is not None:
            self._stopping_rule.told(record.config, trial.score, record.status)

    def _contends(self, trial: Trial, record: TrialRecord) -> bool:
        """Whether a time may win: not that of who was dropped from its screening.

        One sample beside an outlier of the incumbent's would look like a new best. A twin's time is
        that of the trial whose binary it shares, which contends for both.
        """
        return record.source != "binary" and not self.hopeless(trial)

    def _drop_artifacts(self, trial: Trial) -> None:
        """Artifacts of trials that will not reach the finals are not worth their memory.

        Of those that were kept until `trial` was over, it has displaced one at most. The default
        takes part in the finals however slow it is.
        """
        kept = 2 * self.spec.finalists
        timed = trial.score is not None and trial.record and self._contends(trial, trial.record)
        if not timed or (trial.score or 0.0, trial.number) >= self._bar(kept):
            self._forget(trial)
        elif len(self._timed) > kept:
            self._forget(self._timed[kept][2])

    def _forget(self, trial: Trial) -> None:
        if trial.score is None or trial.strategy != "default":
            trial.artifact = None

    def _bar(self, place: int) -> tuple[float, int]:
        """What a trial must be below to be among the first `place`."""
        return self._timed[place][:2] if len(self._timed) > place else (math.inf, 0)

    def _admit(self, config: Config, strategy: str) -> Trial:
        number = next(self._unused)
        self._numbers.add(number)
        trial = Trial(number, config, strategy, asked_at=self._now)
        self.trials[config_key(config)] = trial
        self.move(trial, State.ASKED)
        if self._stopping_rule is not None:
            self._stopping_rule.asked(config)
        if strategy != self.spec.strategy.name and isinstance(self.spec.strategy, PendingAware):
            self.spec.strategy.start(config)
        return trial

    def _ask(self) -> Config | None:
        """A config not tried yet; results of repeated suggestions are told back at once."""
        strategy = self.spec.strategy
        tries = 10**9 if strategy.replays else _REPEATS
        for _ in range(tries):
            asked = strategy.ask(1)
            if not asked:
                return None
            trial = self.trials.get(config_key(asked[0]))
            if trial is None:
                return asked[0]
            if trial.record is not None:
                strategy.tell(asked[0], trial.score, trial.record.status)
        return self._unseen()

    def _unseen(self) -> Config | None:
        feasible = self.spec.space.enumerate()
        return next((c for c in feasible if config_key(c) not in self.trials), None)

    def _wanted(self) -> Config | None:
        """A listed config to ask when the default fails, even beyond the budget of trials."""
        return None if self._given_up or self.spec.compile_only else next_listed(self)

    def _over_time(self, now: float) -> bool:
        budget = self.spec.budget
        return (
            (budget.device_s is not None and self.device_s >= budget.device_s)
            or (budget.wall_s is not None and now - (self.started or now) >= budget.wall_s)
            or (budget.ends_at is not None and now >= budget.ends_at)
        )

    def _polishing(self) -> bool:
        budget = self.spec.budget
        if not budget.polish or budget.trials is None:
            return False
        return len(self.trials) >= budget.trials - budget.polish

    def _polish(self) -> Trial | None:
        """An untried neighbour of the incumbent, or of the next best; None while waiting for it."""
        if self.open_trials:
            return None
        for trial in self.ranked():
            for config in self.spec.space.neighbours(trial.config):
                if config_key(config) not in self.trials:
                    return self._admit(config, "polish")
        self.stopped = True
        return None

    def _polish_likely(self, enough: StoppingRule) -> Trial | None:
        """A neighbour of the incumbent that may still beat it; None while waiting for results,
        which may also show that it is not enough."""
        config = enough.polish(self.incumbent.config if self.incumbent else None)
        if config is not None:
            return self._admit(config, "polish")
        self._drop_surplus(enough)
        self.stopped = not self.open_trials
        return None

    def _drop_surplus(self, enough: StoppingRule) -> None:
        """Give up what is being built and not worth waiting for: nothing else is to be asked."""
        building = [*self.in_state(State.ASKED), *self.in_state(State.BUILDING)]
        usual_s = self._build_s[len(self._build_s) // 2] if self._build_s else math.inf
        late = all(self._now - trial.asked_at > _LATE * usual_s for trial in building)
        configs = [trial.config for trial in building]
        last = late and len(building) == self.open_trials
        self._give_up(enough, enough.late(configs) if last else enough.surplus(configs))

    def _give_up(self, enough: StoppingRule, configs: Sequence[Config]) -> None:
        for config in configs:
            self._drop(self.trials[config_key(config)])
        if configs:
            enough.drop(configs)
        if isinstance(self.spec.strategy, PendingAware):
            for config in configs:
                self.spec.strategy.withdraw(config)

    def _drop(self, trial: Trial) -> None:
        """The trial is over without a result, as if it had not been asked."""
        del self._states[trial.state][trial.number]
        del self.trials[config_key(trial.config)]
        if trial.artifact and self.by_binary.get(trial.artifact.binary_hash) is trial:
            del self.by_binary[trial.artifact.binary_hash]
        trial.state = State.DROPPED


def _spills(trial: Trial) -> bool:
    return trial.artifact is not None and trial.artifact.facts.spill_bytes > HEAVY_SPILL_BYTES


def _first_configs(spec: TaskSpec) -> Iterator[tuple[Config, str]]:
    """What is tried before the strategy is asked, with the name it is recorded under.

    A strategy that learns gets all that earlier runs know, fastest first, as trials that cost
    nothing; one that replays its sequence comes to them by itself.
    """
    yield spec.default, "default"
    if not spec.strategy.replays:
        known = sorted(spec.known, key=lambda r: (r.median_us is None, r.median_us or 0.0))
        yield from ((record.config, "known") for record in known)
    yield from ((c, "warm") for c in spec.neighbours if spec.space.feasible(c))
