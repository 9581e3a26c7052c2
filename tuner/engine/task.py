"""A task and its progress through the stages."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from results_db.stored_records import Stage
from tuner.engine.finals import Finals
from tuner.engine.instructions import Fault, SetStage
from tuner.engine.losses import FaultStreak
from tuner.engine.search import Search
from tuner.engine.task_spec import TaskSpec
from workers.job_records import KernelRef
from workers.measure.timers.methods import METHODS

_log = logging.getLogger(__name__)


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

    def enter(self, stage: Stage, note: str | None = None) -> list[SetStage]:
        """Move to a stage. note: what users read about the task; None keeps what is stored."""
        _log.debug("%s: %s -> %s", self.spec.label, self.stage, stage)
        self.stage = stage
        return [SetStage(self.spec.task_id, stage, note or None)]

    def close(self) -> list[SetStage]:
        """End the task for good and free its artifacts."""
        note = "nothing was tried: the run was out of time" if self.search.out_of_time else None
        instructions = self.enter(Stage.DONE, note)
        for trial in self.search.trials.values():
            trial.artifact = trial.check_artifact = None
        return instructions

    def leave(self, note: str) -> list[SetStage]:
        """End the task in this run. It is stored in stage SEARCH, so that a run can resume it."""
        instructions = self.enter(Stage.SEARCH, note)
        self.stage = Stage.DONE
        return instructions

    def give_up(self, fault: Fault) -> list[SetStage]:
        """Leave the task to a later run because the machine does not recover."""
        _log.warning("%s given up: %s", self.spec.label, fault.reason)
        self.fault = fault
        instructions = self.leave(f"given up: {fault.reason}")
        self.search.stop()
        return instructions


def in_turns(tasks: Iterable[Task]) -> list[Task]:
    """Tasks in the order in which they are opened: the first task of each kernel, then the second.

    Kernels differ in how busy they keep builders and devices; mixing them keeps both busy. Later
    tasks of a kernel start from the winners of its earlier tasks.
    """
    seen: Counter[tuple[KernelRef, str]] = Counter()

    def turn(task: Task) -> int:
        kernel = task.spec.kernel, task.spec.device.fingerprint
        seen[kernel] += 1
        return seen[kernel]

    return sorted(tasks, key=turn)
