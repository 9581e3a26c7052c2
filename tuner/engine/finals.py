"""The race of the finalists on one device and the confirmation in a fresh process.

The times of the search only nominate finalists. Reported figures come from the confirmation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord
from search_spaces.records import Status, config_key
from tuner.base.log_ratio import EQUAL, LogRatio, Verdict
from tuner.base.statistics import compare_pairs, tie_set
from tuner.engine import outcome_records, warm_start
from tuner.engine.contradictions import Contradiction, contradictions
from tuner.engine.search import Search
from tuner.engine.trial_table import Trial
from workers.job_records import Failure, Measurement, Mode, Timing
from workers.measure.race.elimination import race_looks

#: A finalist's time in the search is within this ratio of the best, in ln(time), or within what
#: times of one config differ by here, up to the second.
_NEAR, _FAR = math.log(1.10), math.log(1.60)
#: The least number of finalists, as the default alone is no final; where times of one config
#: differ by more than `_NEAR`, more of them.
_FEWEST, _FEWEST_NOISY = 2, 4
#: A simpler variant may be chosen if the end of its 95 % interval is within this of the fastest, in
#: ln(time).
_EQUAL = math.log(1.005)
#: Failures of whole jobs after which the finals end.
_TRIES = 3
#: Lost jobs after which each further one counts as a failure.
_LOSSES = 6
_log = logging.getLogger(__name__)

FinalsOutcome = tuple[SelectionRecord, list[BaselineRecord], list[FinalRecord]]


@dataclass(slots=True, eq=False)
class Finals:
    """Race and confirmation of one task."""

    search: Search
    #: Candidates of the race, fastest first, then the default config and what a table serves.
    finalists: list[Trial] = field(default_factory=list)
    #: What is measured next, RACE or CONFIRM; None when the finals are over.
    mode: Mode | None = None
    #: A device measures it now.
    in_flight: bool = False
    #: Jobs that failed as a whole.
    tries: int = 0
    #: Jobs that were lost.
    losses: int = 0
    #: The tie set; the first one is the winner.
    tie: list[Trial] = field(default_factory=list)
    #: Why the winner was chosen among the tie set.
    reason: str = ""
    #: The last failure, which says why there is no confirmation.
    problem: str = ""
    #: What the race measured of each finalist.
    records: list[FinalRecord] = field(default_factory=list)
    #: Ratios of the race to its leader, each with its 95 % interval, by trial number.
    _ratios: dict[int, LogRatio] = field(default_factory=dict)
    #: A confirmation was measured.
    _confirmed_once: bool = False
    #: A confirmation contradicted the race, and both are repeated.
    _contradicted: bool = False
    #: The winner of a confirmation has taken the place of the winner of the race.
    _replaced: bool = False
    #: Times of one config differ by more than `_NEAR` here.
    _noisy: bool = False

    def nominate(self) -> None:
        """Choose the finalists. The finals are over at once where no variant was timed.

        The noisier the times of the search, the more of them are admitted: a score is worth what
        times of one config differ by.
        """
        ranked = self.search.ranking.trials()
        seen: set[str] = set()
        best = ranked[0].score if ranked else None
        noise = self.search.noise()
        self._noisy = noise > _NEAR
        limit, least = min(max(_NEAR, noise), _FAR), _FEWEST_NOISY if self._noisy else _FEWEST
        default = warm_start.default_of(self.search.spec, self.search.trials)
        if not self._noisy and ranked and ranked[0] is not default:
            least = 1  # the default is a finalist as well
        for trial in ranked:
            binary = trial.record.binary_hash if trial.record else ""
            near = best is not None and trial.score is not None and trial.score - best <= limit
            full = len(self.finalists) >= self.search.spec.finalists
            if binary in seen or full or not (near or len(self.finalists) < least):
                continue
            seen.add(binary or str(trial.number))
            self.finalists.append(trial)
        trials, served = self.search.trials, self.search.served
        for also in (default, None if served is None else trials.of(served)):
            if also is not None and also not in self.finalists and also.score is not None:
                self.finalists.append(also)
        if self.finalists:
            self.mode = Mode.RACE if len(self.finalists) > 1 else Mode.CONFIRM
            self.tie = self.finalists[:1]

    # -- what is measured next -----------------------------------------------------------------
    @property
    def racing(self) -> bool:
        """The race is next, or in flight."""
        return self.mode is Mode.RACE

    @property
    def repeating(self) -> bool:
        """The confirmation is to be repeated, in another process without history."""
        return self._confirmed_once and self.mode is Mode.CONFIRM

    @property
    def ready(self) -> bool:
        """Whether a device can have the race or the confirmation now."""
        if self.mode is None or self.in_flight or self.to_rebuild():
            return False
        return self.racing or not self.checks_to_build()

    def candidates(self) -> list[Trial]:
        """All finalists for the race; winner, runner-up and default for the confirmation."""
        if self.mode is Mode.RACE:
            return self.finalists
        named = [self.tie[0], *self._others()[:1]]
        default = self._default()
        if default is not None and default in self.finalists and default not in named:
            named.append(default)
        return named

    def to_rebuild(self) -> list[Trial]:
        """Candidates whose artifact was freed."""
        return [t for t in self.candidates() if t.artifact is None]

    def checks_to_build(self) -> list[Trial]:
        """Trials to build at the check size: the winner, before the race the likely winners.

        The confirmation waits for the winner's.
        """
        if self.mode is None:
            return []
        return self.search.without_check(self.finalists if self.mode is Mode.RACE else self.tie[:1])

    # -- answers -------------------------------------------------------------------------------
    def build_failed(self, trial: Trial, failure: Failure) -> None:
        """A finalist could not be built again. The finals continue without it."""
        self.problem = f"{trial.key} could not be built again: {failure.message}"
        self._drop(trial)

    def job_failed(self, failure: Failure) -> None:
        """The whole job failed. Try fewer candidates; after some tries the finals are over."""
        self.in_flight = False
        self.tries += 1
        self.problem = f"{self.mode}: {failure.message}"
        if self.tries >= _TRIES:
            self.mode = None
        elif self.mode is Mode.RACE and len(self.finalists) > 2:
            self.finalists = self.finalists[: max(2, len(self.finalists) // 2)]

    def job_lost(self, reason: str) -> None:
        """The job was lost with its worker. Try again; many losses count as a failure."""
        self.in_flight = False
        self.losses += 1
        if self.losses >= _LOSSES:
            self.job_failed(Failure(Status.RUNTIME, f"{self.losses} workers lost: {reason}"))

    def handle_race(self, measurement: Measurement) -> None:
        """Order the finalists by the race and choose among those that tie."""
        self.in_flight = False
        trials = {str(place): trial for place, trial in enumerate(self.finalists)}
        times: dict[str, tuple[float, ...]] = {}
        for name, outcome in zip(trials, measurement.outcomes, strict=True):
            if isinstance(outcome, Timing) and outcome.samples_us:
                times[name] = outcome.samples_us
            else:
                why = outcome.message if isinstance(outcome, Failure) else "was not timed"
                self.problem = f"{trials[name].key} failed in the race: {why}"
                self._drop(trials[name])
        if not times:
            return
        result = tie_set(times, looks=len(race_looks(self.search.spec.protocol)))
        self.records = outcome_records.race_records(trials, measurement, result)
        by_ratio = sorted(times, key=lambda name: result.ratios[name].value)
        order = [result.winner, *(name for name in by_ratio if name != result.winner)]
        self.finalists = [trials[name] for name in order]
        equals = [
            trials[name]
            for name in result.equals
            if name == result.winner
            or compare_pairs(times[name], times[result.winner]).high <= _EQUAL
        ]
        chosen = self._choose(equals, len(result.equals))
        tied = [trials[name] for name in order if name in result.members]
        self.tie = [chosen, *(trial for trial in tied if trial is not chosen)]
        self._ratios = {
            trials[name].number: EQUAL
            if name == result.winner
            else compare_pairs(samples, times[result.winner][: len(samples)])
            for name, samples in times.items()
        }
        self.mode = Mode.CONFIRM

    def handle_confirmation(self, measurement: Measurement) -> FinalsOutcome | None:
        """The outcome of the task, or None when more is to be measured.

        That is so when the winner failed, so that the next one is confirmed, and when the
        confirmation contradicts the race for the first time in what is reported, so that both are
        repeated. On a noisy device, what wins the second confirmation is then confirmed as the
        winner. After that, the verdict is `undecided` only if the contradiction is about the
        default config. A candidate that contradicts the race in any other way ties with the winner.
        """
        self.in_flight = False
        self._confirmed_once = True
        candidates = self.candidates()
        numbers = [trial.number for trial in candidates]
        outcomes = dict(zip(numbers, measurement.outcomes, strict=True))
        winner = outcomes[numbers[0]]
        if isinstance(winner, Failure):
            config = candidates[0].key
            self.problem = f"{config} failed to confirm: {winner.message}"
            self._drop(candidates[0])
            return None
        default = self._default()
        own = default.number if default is not None else None
        moved = contradictions(numbers[0], own, self._ratios, outcomes, noisy=self._noisy)
        decisive = [one for one in moved if one.decisive]
        if decisive and not self._contradicted:
            _log.debug("%s: race repeated: %s", self.search.spec.label, decisive[0])
            self._contradicted = True
            self.mode = Mode.RACE
            return None
        better = next((one for one in moved if one.wins), None)
        if better is not None and not self._replaced:
            self._replace_winner(candidates[numbers.index(better.number)])
            return None
        self.mode = None
        reason = self._with_default_note(self.reason or "the only variant that ran")
        undecided = [one for one in decisive if one.is_default or candidates[0] is default]
        if not undecided:
            reason = self._with_ties(reason, moved)
        found = outcome_records.selection(
            self.tie,
            winner,
            outcomes,
            measurement,
            self._others(),
            default,
            reason,
            self.search.spec.protocol.final_pairs,
        )
        if undecided:
            reason = f"not settled: between race and confirmation {undecided[0]}, twice"
            found = replace(found, verdict=Verdict.UNDECIDED, reason=reason)
        records = [*self.records, *outcome_records.confirm_records(candidates, measurement)]
        return found, outcome_records.baselines(measurement), records

    def select_unconfirmed(self) -> SelectionRecord | None:
        """What the search alone says, when no race or confirmation was possible."""
        ranked = self.tie or self.search.ranking.trials()
        if not ranked:
            return None
        default = self._default()
        reason = f"not confirmed: {self.problem or 'no finalist was timed'}"
        return SelectionRecord(
            winner=ranked[0].config,
            tie_set=tuple(t.config for t in ranked[: max(1, len(self.tie))]),
            verdict=Verdict.UNDECIDED,
            reason=self._with_default_note(reason),
            default=default.config if default else None,
        )

    # -- inside --------------------------------------------------------------------------------
    def _replace_winner(self, better: Trial) -> None:
        """Confirm the config that was faster in the confirmation, in the winner's place."""
        self._replaced = True
        self.tie = [better, *(trial for trial in self.tie if trial is not better)]
        self.finalists = [better, *(trial for trial in self.finalists if trial is not better)]
        self._ratios = {}  # the race is no longer what it is compared with
        self.reason = "faster than the winner of the race in two confirmations"
        self.mode = Mode.CONFIRM

    def _with_ties(self, reason: str, moved: Sequence[Contradiction]) -> str:
        """Add candidates that contradict the race to the tie set; the reason that says so."""
        numbers = {one.number for one in moved}
        joined = [trial for trial in self.finalists if trial.number in numbers]
        self.tie = [*self.tie, *(trial for trial in joined if trial not in self.tie)]
        notes = [
            f"{one.name} cannot be distinguished from the winner: between race and "
            f"confirmation its time {one.change}"
            for one in moved
        ]
        return "; ".join([reason, *notes])

    def _default(self) -> Trial | None:
        """The default config; where the kernel's own fails, the fastest listed finalist."""
        return warm_start.default_of(self.search.spec, self.search.trials, self.finalists)

    def _choose(self, equals: Sequence[Trial], indistinct: int) -> Trial:
        default = self._default()
        own = config_key(default.config if default is not None else self.search.spec.default)
        shared = {config_key(config) for config in self.search.spec.neighbours}
        chosen, self.reason = choose(equals, indistinct, own, shared)
        return chosen

    def _with_default_note(self, reason: str) -> str:
        spec, trials = self.search.spec, self.search.trials
        note = warm_start.failed_default_note(spec, trials, self._default())
        return f"{reason}; {note}" if note else reason

    def _others(self) -> list[Trial]:
        return [t for t in self.finalists if t is not self.tie[0]]

    def _drop(self, trial: Trial) -> None:
        label = self.search.spec.label
        _log.debug("%s: finalist %d dropped: %s", label, trial.number, self.problem)
        self.finalists = [t for t in self.finalists if t is not trial]
        self.tie = [t for t in self.tie if t is not trial] or self.finalists[:1]
        if not self.finalists:
            self.mode = None


def choose(
    equals: Sequence[Trial], indistinct: int, default: str, shared: Collection[str]
) -> tuple[Trial, str]:
    """The chosen trial, and why in words.

    The order of preference is: the default, a winner of neighbouring workloads, fewer registers,
    the first asked. equals: the winner of the race and all that certainly cost little more.
    indistinct: how many cannot be distinguished from the fastest. default, shared: config keys.
    """

    def rank(trial: Trial) -> tuple[bool, bool, int, int]:
        registers = trial.record.registers if trial.record else None
        return trial.key != default, trial.key not in shared, registers or 0, trial.number

    chosen = min(equals, key=rank)
    key = chosen.key
    if len(equals) == 1:
        by_estimate = f"fastest by estimate, of {indistinct} that cannot be distinguished"
        return chosen, "clearly the fastest" if indistinct == 1 else by_estimate
    if key == default:
        return chosen, f"the default ties with the fastest of {len(equals)}"
    if key in shared:
        return chosen, f"shared with neighbouring workloads, of {len(equals)} that tie"
    return chosen, f"fewest registers, then first asked, of {len(equals)} that tie"
