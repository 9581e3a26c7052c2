"""After the search: finals on one device, confirmation in a fresh process, and the selection.

The search's own times only nominate. Figures that are reported come from the confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from results_db.records import BaselineRecord, SelectionRecord
from search_spaces.records import Status, config_key
from tuner.engine.results import finite
from tuner.engine.task import Search, Trial
from workers.measure.statistics import tie_set, verdict
from workers.records import Failure, Measurement, Mode, Timing

#: Only what the search saw within this ratio of the best is a finalist.
_NEAR = math.log(1.10)
#: A finals or confirmation job that fails as a whole is tried this often.
_TRIES = 3
#: Losses of the worker that are nobody's fault; each one more counts as a failure.
_LOSSES = 6


@dataclass(slots=True)
class Finals:
    """Finals and confirmation of one task; `mode` is what is to be measured next, None when over.

    finalists: challengers and the default, fastest of the search first.
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
        default = self._default()
        if default is not None and default not in self.finalists and default.score is not None:
            self.finalists.append(default)
        if self.finalists:
            self.mode = Mode.RACE if len(self.finalists) > 1 else Mode.CONFIRM
            self.tie = self.finalists[:1]

    def entrants(self) -> list[Trial]:
        """Who takes part in what is next; in a confirmation: winner, runner-up, default."""
        if self.mode is Mode.RACE:
            return self.finalists
        named = [self.tie[0], *self._others()[:1]]
        default = self._default()
        if default is not None and default in self.finalists and default not in named:
            named.append(default)
        return named

    def missing(self) -> list[Trial]:
        """Entrants whose artifact has to be built (again)."""
        return [t for t in self.entrants() if t.artifact is None]

    def lost(self, trial: Trial) -> None:
        """A finalist could not be built again: it goes on without."""
        self._drop([trial])

    def failed(self, failure: Failure) -> None:
        """The whole job failed; fewer entrants the next time, and after a few tries none."""
        self.in_flight = False
        self.tries += 1
        self.note = f"{self.mode}: {failure.message}"
        if self.tries >= _TRIES:
            self.mode = None
        elif self.mode is Mode.RACE and len(self.finalists) > 2:
            self.finalists = self.finalists[: max(2, len(self.finalists) // 2)]

    def worker_lost(self, reason: str) -> None:
        """The worker died, not an entrant: the same again elsewhere, but not without end."""
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
        result = tie_set(times)
        order = sorted(times, key=lambda name: _median(times[name]))
        self.finalists = [trials[name] for name in order]
        tied = {result.winner, *result.members}
        self.tie = self._choose([trials[name] for name in order if name in tied])
        self.mode = Mode.CONFIRM

    def confirmed(
        self, measurement: Measurement
    ) -> tuple[SelectionRecord, list[BaselineRecord]] | None:
        """The selection, or None when the winner failed and the next one is to be confirmed."""
        self.in_flight = False
        entrants = self.entrants()
        outcomes = dict(zip(map(id, entrants), measurement.outcomes, strict=True))
        first = outcomes[id(entrants[0])]
        if isinstance(first, Failure):
            self.note = f"{config_key(entrants[0].config)} failed to confirm: {first.message}"
            self._drop([entrants[0]])
            return None
        self.mode = None
        return self._selection(first, outcomes, measurement), _baselines(measurement)

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
            reason=f"not confirmed: {self.note or 'no device was left'}",
            default=default.config if default else None,
        )

    # -- inside --------------------------------------------------------------------------------
    def _default(self) -> Trial | None:
        return self.search.trials.get(config_key(self.search.spec.default))

    def _others(self) -> list[Trial]:
        return [t for t in self.finalists if t is not self.tie[0]]

    def _drop(self, trials: Sequence[Trial]) -> None:
        gone = {id(t) for t in trials}
        self.finalists = [t for t in self.finalists if id(t) not in gone]
        self.tie = [t for t in self.tie if id(t) not in gone] or self.finalists[:1]
        if not self.finalists:
            self.mode = None

    def _choose(self, tied: list[Trial]) -> list[Trial]:
        """Among ties: the default, what neighbours chose, fewer registers, then the first asked."""
        default = config_key(self.search.spec.default)
        shared = {config_key(c) for c in self.search.spec.neighbours}

        def rank(trial: Trial) -> tuple[bool, bool, int, int]:
            key = config_key(trial.config)
            registers = trial.record.registers if trial.record else None
            return key != default, key not in shared, registers or 0, trial.number

        chosen = sorted(tied, key=rank)
        key = config_key(chosen[0].config)
        if len(tied) == 1:
            self.reason = "fastest beyond doubt"
        elif key == default:
            self.reason = f"the default ties with the fastest of {len(tied)}"
        elif key in shared:
            self.reason = f"shared with neighbouring workloads, of {len(tied)} that tie"
        else:
            self.reason = f"fewest registers, then first asked, of {len(tied)} that tie"
        return chosen

    def _selection(
        self, winner: Timing, outcomes: Mapping[int, Timing | Failure], measurement: Measurement
    ) -> SelectionRecord:
        default = self._default()
        against = outcomes.get(id(default)) if default is not None else None
        others = self._others()
        is_default = default is self.tie[0]
        ratio = against if isinstance(against, Timing) and not is_default else None
        return SelectionRecord(
            winner=self.tie[0].config,
            tie_set=tuple(t.config for t in self.tie),
            verdict=_verdict(ratio, is_default),
            reason=self.reason or "the only variant that ran",
            runner_up=others[0].config if others else None,
            default=default.config if default is not None else None,
            median_us=winner.median_us,
            default_us=winner.median_us if is_default else (ratio.median_us if ratio else None),
            log_ratio=0.0 if is_default else (ratio.log_ratio if ratio else None),
            log_ratio_low=0.0 if is_default else (finite(ratio.log_ratio_low) if ratio else None),
            log_ratio_high=0.0 if is_default else (finite(ratio.log_ratio_high) if ratio else None),
            samples_us=winner.samples_us,
            compiled=measurement.compiled,
            clocks=dict(measurement.clocks),
        )


def settled_outcome(
    search: Search,
) -> tuple[SelectionRecord, Sequence[BaselineRecord]] | None:
    """The confirmed outcome of an earlier task, when this one learned nothing beyond it."""
    settled = search.spec.settled
    if settled is None or settled.selection is None:
        return None
    records = [trial.record for trial in search.trials.values()]
    nothing_new = all(record is not None and record.source == "reused" for record in records)
    known = config_key(settled.selection.winner) in search.trials
    return (settled.selection, settled.baselines) if nothing_new and known else None


def _verdict(default: Timing | None, is_default: bool) -> str:
    """How the winner compares with the default; `default` holds ln(default / winner)."""
    if is_default:
        return "same"
    if default is None:
        return "undecided"
    return str(verdict(-default.log_ratio, -default.log_ratio_high, -default.log_ratio_low))


def _baselines(measurement: Measurement) -> list[BaselineRecord]:
    records = []
    for name, outcome in sorted(measurement.baselines.items()):
        if isinstance(outcome, Failure):
            records.append(BaselineRecord(name, outcome.status, message=outcome.message))
            continue
        records.append(
            BaselineRecord(
                name,
                Status.CORRECT,
                median_us=outcome.median_us,
                log_ratio=outcome.log_ratio,
                log_ratio_low=finite(outcome.log_ratio_low),
                log_ratio_high=finite(outcome.log_ratio_high),
                error=outcome.error if outcome.error >= 0 else None,
                samples_us=outcome.samples_us,
            )
        )
    return records


def _median(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    return ordered[len(ordered) // 2]
