"""A task and its progress through the stages."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from results_db.stored_records import (
    BaselineRecord,
    FinalRecord,
    SelectionRecord,
    Stage,
    TrialRecord,
)
from search_spaces.records import Config, Device, Status, Workload
from search_spaces.size_range import RangePlace
from tuner import strategies
from tuner.engine import outcome_records
from tuner.engine.finals import Finals
from tuner.engine.instructions import Fault, Instruction, Record, Select, SetStage
from tuner.engine.losses import FaultStreak
from tuner.engine.search import Search
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_records import of_build, of_duplicate_binary, of_failed_build
from tuner.engine.trial_table import Trial, TrialState
from workers.job_records import Failure, Measurement, Mode
from workers.measure.timers.methods import METHODS

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Task:
    """The search of a task, its finals, and the state that its jobs share."""

    search: Search
    stage: Stage = Stage.WAITING
    finals: Finals | None = None
    #: The timing method of all variants of the task; empty until the first measurement.
    method: str = ""
    #: Ids of the workers that have confirmed the task.
    confirmed_by: set[str] = field(default_factory=set)
    #: Until this time a repeated confirmation waits for a process without history.
    repeat_waits_until: float | None = None
    #: Faults of the machine in a row, of builds.
    build_faults: FaultStreak = field(default_factory=FaultStreak)
    #: Faults of the machine in a row, of measurements.
    measure_faults: FaultStreak = field(default_factory=FaultStreak)
    #: The fault for which the task was given up, if any.
    fault: Fault | None = None
    #: What was selected.
    outcome: Select | None = None

    def __post_init__(self) -> None:
        used = (record.method for record in self.spec.finished)
        self.method = next((method for method in used if method in METHODS), "")

    @property
    def spec(self) -> TaskSpec:
        return self.search.spec

    @property
    def active(self) -> bool:
        """Whether the task was opened and is not over."""
        return self.stage not in (Stage.WAITING, Stage.DONE)

    @property
    def is_held(self) -> bool:
        """Whether the search waits for the choice of the bits of rows."""
        searched = self.stage is Stage.SEARCH and self.search.asker.exhausted
        return searched and self.spec.awaits_bits

    def keep_to_bits(self, bits: str) -> None:
        """Search, or search on, among the configs that give rows these bits."""
        spec, trials = self.spec, self.search.trials.values()
        records = tuple(trial.record for trial in trials if trial.record is not None)
        strategy = strategies.create(
            spec.strategy.name, spec.space, spec.seed, spec.strategy_options
        )
        budget = spec.budget
        if records and self.active:  # of trials and device time it has used its part
            budget = replace(budget, search_s=budget.halve().search_s)
        self.search = Search(
            replace(spec, row_bits=bits, finished=records, strategy=strategy, budget=budget)
        )

    # -- trials --------------------------------------------------------------------------------
    def finish(self, trial: Trial, record: TrialRecord) -> list[Record]:
        """Record a trial, and every trial that waits for the result of the same binary."""
        _log.debug("%s: trial %d: %s", self.spec.label, trial.number, record.status)
        trials = self.search.trials
        self.search.finish(trial, record)
        records = [record]
        if trials.by_binary.get(record.binary_hash) is trial:
            for duplicate in trials.in_state(TrialState.WAITING):
                artifact = duplicate.artifact
                if artifact is not None and artifact.binary_hash == record.binary_hash:
                    copied = of_duplicate_binary(self.spec, duplicate, artifact, record)
                    self.search.finish(duplicate, copied)
                    records.append(copied)
        return [Record(self.spec.task_id, each) for each in records]

    def list_late_builds(self, now: float) -> list[Trial]:
        """Trials whose builds take far longer than all others, while the search waits for no more.

        The default config and others that were named are awaited, and each of an exhaustive search.
        """
        trials, asker = self.search.trials, self.search.asker
        waits = self.stage is Stage.SEARCH and (asker.stopped or asker.waiting_for_results)
        strategy = self.spec.strategy.name
        if not waits or strategy == "exhaustive" or trials.count(TrialState.ASKED):
            return []
        late = trials.list_late_builds(now, stuck=True)
        return late if all(each.strategy in (strategy, "polish") for each in late) else []

    def give_up_build(self, trial: Trial, now: float) -> list[Record]:
        """Record a trial whose build took long on two builders."""
        build_s, usual_s = now - trial.asked_at, self.search.trials.median_build_s
        failure = Failure(
            Status.TIMEOUT,
            f"its build was given up after {build_s:.0f} s on each of two builders; others took "
            f"{usual_s:.1f} s",
            build_s=build_s,
        )
        return self.finish(trial, of_failed_build(self.spec, trial, failure))

    # -- stages --------------------------------------------------------------------------------
    def open(self, winners: Iterable[Config]) -> list[SetStage]:
        """Begin the search. winners: of neighbouring workloads, to try after the default config."""
        self.search.asker.add_winners(winners)
        return self._enter(Stage.SEARCH)

    def leave_out(self, note: str) -> list[SetStage]:
        """End the task without a search."""
        return self._enter(Stage.DONE, note)

    def settle(self, *, draining: bool) -> list[Instruction]:
        """Move on where the search or the finals are over.

        After a search, begin the finals, or take over the outcome of an earlier task.
        """
        instructions: list[Instruction] = []
        if self.spec.aim is not Aim.SEARCH:
            return self._settle_given(draining=draining)
        if self.is_held and not draining:
            return []
        if self.stage is Stage.SEARCH and self.search.asker.exhausted:
            settled = None if self.spec.rows else outcome_records.settled_outcome(self.search)
            if settled is not None:
                return [self._select(*settled), *self._close()]
            self.finals = Finals(self.search)
            self.finals.nominate()
            instructions += self._enter(Stage.FINALS)
        finals = self.finals
        if finals is None or finals.in_flight:
            return instructions
        if finals.mode is Mode.CONFIRM and self.stage is Stage.FINALS:
            instructions += self._enter(Stage.CONFIRM)
        if draining:
            instructions += self._leave("interrupted")
        elif finals.mode is None:
            selection = finals.select_unconfirmed()
            if selection is not None:
                instructions.append(self._select(selection, ()))
            instructions += self._close()
        return instructions

    def _settle_given(self, *, draining: bool) -> list[Instruction]:
        """Leave settled builds of a comparison unmeasured, and end where all is done."""
        spec, given = self.spec, self.search.list_given()
        built = [(each, each.artifact) for each in given if each.artifact is not None]
        instructions: list[Instruction] = []
        artifacts = [artifact for _, artifact in built]
        if spec.is_settled is not None and spec.is_settled(spec.device, artifacts):
            for trial, artifact in built:
                instructions += self.finish(trial, of_build(spec, trial, artifact))
        if self.search.asker.exhausted:
            instructions += self._leave("interrupted") if draining else self._close()
        return instructions

    def select_first(self, given: Sequence[Trial], measured: Measurement) -> Select:
        """The outcome of a comparison."""
        default = self.search.trials.of(self.spec.default)
        pairs = self.spec.protocol.final_pairs
        found = outcome_records.comparison(given, measured, default, pairs)
        return self._select(found, outcome_records.baselines(measured))

    def take_final_measurement(self, result: Measurement | Failure) -> list[Instruction]:
        """The race or the confirmation was measured, or failed as a whole."""
        finals = self.finals
        if finals is None or self.stage is Stage.DONE:
            return []
        if isinstance(result, Failure):
            _log.warning("%s: the %s failed: %s", self.spec.label, finals.mode, result.message)
            finals.job_failed(result)
        elif finals.racing:
            finals.handle_race(result)
        elif (outcome := finals.handle_confirmation(result)) is not None:
            return [self._select(*outcome), *self._close()]
        elif finals.racing:
            return [*self._enter(Stage.FINALS)]
        return []

    def give_up(self, fault: Fault) -> list[SetStage]:
        """Leave the task to a later run because the machine does not recover."""
        _log.warning("%s given up: %s", self.spec.label, fault.reason)
        self.fault = fault
        instructions = self._leave(f"given up: {fault.reason}")
        self.search.asker.stop()
        return instructions

    def _select(
        self,
        selection: SelectionRecord,
        baselines: Sequence[BaselineRecord],
        finals: Sequence[FinalRecord] = (),
    ) -> Select:
        self.outcome = Select(self.spec.task_id, selection, baselines, finals)
        return self.outcome

    def _enter(self, stage: Stage, note: str | None = None) -> list[SetStage]:
        """Move to a stage. note: what users read about the task; None keeps what is stored."""
        _log.debug("%s: %s -> %s", self.spec.label, self.stage, stage)
        self.stage = stage
        return [SetStage(self.spec.task_id, stage, note or None)]

    def _close(self) -> list[SetStage]:
        """End the task for good and free its artifacts."""
        out_of_time = self.spec.budget.ends_at is not None and not self.search.trials
        self.search.trials.release_all()
        note = "nothing was tried: the run was out of time" if out_of_time else None
        return self._enter(Stage.DONE, note)

    def _leave(self, note: str) -> list[SetStage]:
        """End the task in this run. It is stored in stage SEARCH, so that a run can resume it."""
        instructions = self._enter(Stage.SEARCH, note)
        self.stage = Stage.DONE
        return instructions


def in_turns(tasks: Iterable[T], describe: Callable[[T], tuple[Hashable, float]]) -> list[T]:
    """Tasks in the order in which they are opened: those of the largest expected gain first, of
    equal ones the first task of each group, then the second.

    describe: the group of a task, see `find_group`, and its expected gain.

    Kernels differ in how busy they keep builders and devices; mixing them keeps both busy. Later
    tasks of a kernel start from the winners of its earlier tasks, and where the time does not
    suffice for all sizes of ranges, each range has those that matter most to it.
    """
    seen: Counter[Hashable] = Counter()

    def turn(task: T) -> tuple[float, int]:
        group, gain = describe(task)
        seen[group] += 1
        return -gain, seen[group]

    return sorted(tasks, key=turn)


def find_group(
    kernel: Hashable, device: Device, workload: Workload, place: RangePlace | None
) -> Hashable:
    """What tasks that take turns with others have in common: kernel, device, and the range."""
    range_ = None if place is None else (place.ranges, place.rest_of(workload))
    return kernel, device.fingerprint, range_
