"""Events into the engine and instructions out of it. Both are plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from results_db.stored_records import (
    BaselineRecord,
    FinalRecord,
    RunStatus,
    SelectionRecord,
    Stage,
    TrialRecord,
)
from workers.job_records import BuildJob, MeasureJob, PoolEvent


# -- events besides those of the pool --------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Budgets, pauses and patience advance when nothing else happens."""


@dataclass(frozen=True, slots=True)
class BuildersChanged:
    """The pool now runs this many builds at once."""

    builders: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask for nothing new, finish what is in flight, and leave the rest to a later run."""


Event: TypeAlias = PoolEvent | Tick | BuildersChanged | Drain


# -- instructions ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Build:
    """Submit a build to the pool."""

    job: BuildJob


@dataclass(frozen=True, slots=True)
class Measure:
    """Submit a measurement to this worker."""

    worker_id: str
    job: MeasureJob


@dataclass(frozen=True, slots=True)
class Record:
    """Store one finished trial, in one transaction."""

    task_id: int
    record: TrialRecord


@dataclass(frozen=True, slots=True)
class SetStage:
    """Store the stage of a task."""

    task_id: int
    stage: Stage
    #: Replaces the task's note for users; None keeps it.
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Store the outcome of a task."""

    task_id: int
    selection: SelectionRecord
    baselines: Sequence[BaselineRecord]
    #: The measurements of each finalist in race and confirmation.
    finals: Sequence[FinalRecord] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the machine that ended a task or a run."""

    #: What happened, in one line.
    reason: str
    #: What a user can do about it.
    remedy: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do."""

    status: RunStatus
    message: str = ""
    #: The fault of the machine that ended the run or one of its tasks, if any.
    fault: Fault | None = None


Instruction: TypeAlias = Build | Measure | Record | SetStage | Select | Finish
