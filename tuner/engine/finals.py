"""After the search: finals on one device, confirmation in a fresh process, and the selection.

The search's own times only nominate. Figures that are reported come from the confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from results_db.records import BaselineRecord, FinalRecord, SelectionRecord
from search_spaces.records import Status, config_key
from search_spaces.statistics import paired, tie_set
from tuner.engine import selection
from tuner.engine.default_config import default_of, remark
from tuner.engine.search import Search
from tuner.engine.trial import Trial
from workers.records import Failure, Measurement, Mode, Timing

#: Only what the search saw within this ratio of the best is a finalist.
_NEAR = math.log(1.10)
#: Equals of the fastest are chosen for being simpler where they cost at most this, in ln(time), by
#: the end of their 95 % interval.
_EQUAL = math.log(1.005)
#: A confirmation that moves a ratio by more than this contradicts the race.
_MOVED = math.log(1.01)
#: A finals or confirmation job that fails as a whole is tried this often.
_TRIES = 3
#: Losses of the worker that are nobody's fault; each one more counts as a failure.
_LOSSES = 6


@dataclass(slots=True)
class Finals:
    """Finals and confirmation of one task; `mode` is what is to be measured next, None when over.

    finalists: candidates and the default, fastest of the search first. records: what was
    measured of whom.
    """

    search: Search
    finalists: list[Trial] = field(default_factory=list)
    mode: Mode | None = None
    in_flight: bool = False
    tries: int = 0
    losses: int = 0
    tie: list[Trial] = field(default_factory=list)
    reason: str = ""
    note: str = ""
    records: list[FinalRecord] = field(default_factory=list)
    _ratios: dict[int, float] = field(default_factory=dict)
    _answered: bool = False
    _contradicted: bool = False

    def open(self) -> None:
        """Nominate. Nothing to do when no variant was timed."""
        ranked = self.search.ranked()
        seen: set[str] = set()
        best = ranked[0].score if ranked else None
        for trial in ranked:
            binary = trial.record.binary_hash if trial.record else ""
            near = best is not None and trial.score is not None and trial.score - best <= _NEAR
            if binary in seen or not near or len(self.finalists) >= self.search.spec.finalists:
                continue
            seen.add(binary or str(trial.number))
            self.finalists.append(trial)
        default = self.search.default()
        if default is not None and default not in self.finalists and default.score is not None:
            self.finalists.append(default)
        if self.finalists:
            self.mode = Mode.RACE if len(self.finalists) > 1 else Mode.CONFIRM
            self.tie = self.finalists[:1]

    @property
    def repeating(self) -> bool:
        """A confirmation is to be repeated, for which a process without history must come up."""
        return self._answered and self.mode is Mode.CONFIRM

    @property
    def racing(self) -> bool:
        """The race of all finalists is next, or under way."""
        return self.mode is Mode.RACE

    def candidates(self) -> list[Trial]:
        """Who takes part in what is next; in a confirmation: winner, runner-up, default."""
        if self.mode is Mode.RACE:
            return self.finalists
        named = [self.tie[0], *self._others()[:1]]
        default = self._default()
        if default is not None and default in self.finalists and default not in named:
            named.append(default)
        return named

    def missing(self) -> list[Trial]:
        """Candidates whose artifact has to be built (again)."""
        return [t for t in self.candidates() if t.artifact is None]

    def unchecked(self) -> list[Trial]:
        """Who is still to be built at its odd size: the winner, or those likely to be it.

        The confirmation waits for the winner's.
        """
        if self.mode is None:
            return []
        return self.search.likely(self.finalists if self.mode is Mode.RACE else self.tie[:1])

    def lost(self, trial: Trial) -> None:
        """A finalist could not be built again: it goes on without."""
        self._drop([trial])

    def failed(self, failure: Failure) -> None:
        """The whole job failed; fewer candidates the next time, and after a few tries none."""
        self.in_flight = False
        self.tries += 1
        self.note = f"{self.mode}: {failure.message}"
        if self.tries >= _TRIES:
            self.mode = None
        elif self.mode is Mode.RACE and len(self.finalists) > 2:
            self.finalists = self.finalists[: max(2, len(self.finalists) // 2)]

    def worker_lost(self, reason: str) -> None:
        """The worker died, not a candidate: the same again elsewhere, but not without end."""
        self.in_flight = False
        self.losses += 1
        if self.losses >= _LOSSES:
            self.failed(Failure(Status.RUNTIME, f"{self.losses} workers lost: {reason}"))

    def raced(self, measurement: Measurement) -> None:
        """Order the finalists by the interleaved race and choose among those that tie."""
        self.in_flight = False
        trials = dict(zip(map(str, range(len(self.finalists))), self.finalists, strict=True))
        times = {
            name: outcome.samples_us
            for name, outcome in zip(trials, measurement.outcomes, strict=True)
            if isinstance(outcome, Timing) and outcome.samples_us
        }
        self._drop([t for name, t in trials.items() if name not in times])
        if not times:
            return
        result = tie_set(times, looks=self.search.spec.protocol.rounds)
        self.records = selection.race_records(trials, measurement, result)
        slowest_last = sorted(times, key=lambda name: result.ratios[name].log_ratio)
        order = [result.winner, *(name for name in slowest_last if name != result.winner)]
        self.finalists = [trials[name] for name in order]
        tied = [trials[name] for name in order if name in result.members]
        equal = [
            trials[name]
            for name in result.equals
            if name == result.winner or paired(times[name], times[result.winner]).high <= _EQUAL
        ]
        first = self._choose(equal, len(result.equals))[0]
        self.tie = [first, *(trial for trial in tied if trial is not first)]
        self._ratios = {
            trials[name].number: ratio.log_ratio for name, ratio in result.ratios.items()
        }
        self.mode = Mode.CONFIRM

    def confirmed(
        self, measurement: Measurement
    ) -> tuple[SelectionRecord, list[BaselineRecord], list[FinalRecord]] | None:
        """The selection, or None when there is more to measure: the winner failed and the next one
        is to be confirmed, or race and confirmation contradict each other for the first time."""
        self.in_flight = False
        self._answered = True
        candidates = self.candidates()
        outcomes = {
            trial.number: result
            for trial, result in zip(candidates, measurement.outcomes, strict=True)
        }
        first = outcomes[candidates[0].number]
        if isinstance(first, Failure):
            self.note = f"{config_key(candidates[0].config)} failed to confirm: {first.message}"
            self._drop([candidates[0]])
            return None
        moved = self._moved(outcomes)
        if moved and not self._contradicted:
            self._contradicted = True
            self.mode = Mode.RACE
            return None
        self.mode = None
        found = selection.selection(
            self.tie,
            first,
            outcomes,
            measurement,
            self._others(),
            self._default(),
            self._with_remark(self.reason or "the only variant that ran"),
        )
        if moved:
            found = selection.undecided(found, moved)
        records = [*self.records, *selection.confirm_records(candidates, measurement)]
        return found, selection.baselines(measurement), records

    def unconfirmed(self) -> SelectionRecord | None:
        """What the search alone can say, when finals or confirmation were not possible."""
        ranked = self.tie or self.search.ranked()
        if not ranked:
            return None
        default = self._default()
        return SelectionRecord(
            winner=ranked[0].config,
            tie_set=tuple(t.config for t in ranked[: max(1, len(self.tie))]),
            verdict="undecided",
            reason=self._with_remark(f"not confirmed: {self.note or 'no device was left'}"),
            default=default.config if default else None,
        )

    # -- inside --------------------------------------------------------------------------------
    def _moved(self, outcomes: dict[int, Timing | Failure]) -> str:
        """How a confirmation contradicts the race, in words.

        It does when a screened_against's ratio to the winner has moved by more than the threshold
        and out of its interval, unless the screened_against is clearly slower in both.
        """
        winner = self.tie[0].number
        for number, confirmed in outcomes.items():
            if number == winner or number not in self._ratios or winner not in self._ratios:
                continue
            if not isinstance(confirmed, Timing) or not confirmed.samples_us:
                continue
            raced = self._ratios[number] - self._ratios[winner]
            inside = confirmed.log_ratio_low <= raced <= confirmed.log_ratio_high
            moved = abs(confirmed.log_ratio - raced) > _MOVED and not inside
            if moved and min(raced, confirmed.log_ratio) < _MOVED:
                change = math.expm1(confirmed.log_ratio - raced)
                return f"a screened_against's time moved by {change:+.1%} against the winner's"
        return ""

    def _default(self) -> Trial | None:
        """The default; where the kernel's own failed, the fastest listed finalist."""
        return default_of(self.search, self.finalists)

    def _with_remark(self, reason: str) -> str:
        said = remark(self.search, self._default())
        return f"{reason}; {said}" if said else reason

    def _others(self) -> list[Trial]:
        return [t for t in self.finalists if t is not self.tie[0]]

    def _drop(self, trials: Sequence[Trial]) -> None:
        gone = {id(t) for t in trials}
        self.finalists = [t for t in self.finalists if id(t) not in gone]
        self.tie = [t for t in self.tie if id(t) not in gone] or self.finalists[:1]
        if not self.finalists:
            self.mode = None

    def _choose(self, tied: list[Trial], untold: int) -> list[Trial]:
        """Among ties: the default, what neighbours chose, fewer registers, then the first asked.

        untold: how many could not be told from the fastest, of which these are near it for sure.
        """
        own = self._default()
        default = config_key(own.config if own is not None else self.search.spec.default)
        shared = {config_key(c) for c in self.search.spec.neighbours}

        def rank(trial: Trial) -> tuple[bool, bool, int, int]:
            key = config_key(trial.config)
            registers = trial.record.registers if trial.record else None
            return key != default, key not in shared, registers or 0, trial.number

        chosen = sorted(tied, key=rank)
        key = config_key(chosen[0].config)
        if len(tied) == 1:
            by_estimate = f"fastest by estimate, of {untold} that could not be told apart"
            self.reason = "fastest beyond doubt" if untold == 1 else by_estimate
        elif key == default:
            self.reason = f"the default ties with the fastest of {len(tied)}"
        elif key in shared:
            self.reason = f"shared with neighbouring workloads, of {len(tied)} that tie"
        else:
            self.reason = f"fewest registers, then first asked, of {len(tied)} that tie"
        return chosen
