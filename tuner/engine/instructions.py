"""What the engine is told and what it orders; both plain data, so every fault can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from results_db.records import BaselineRecord, FinalRecord, SelectionRecord, TrialRecord
from workers.records import BuildJob, MeasureJob, PoolEvent


# -- events beside those of the pool ---------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by; keeps budgets and patience running when nothing else happens."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop asking; finish what is in flight and select from what there is."""


Event: TypeAlias = PoolEvent | Tick | Drain


# -- instructions ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Build:
    job: BuildJob


@dataclass(frozen=True, slots=True)
class Measure:
    worker_id: str
    job: MeasureJob


@dataclass(frozen=True, slots=True)
class Record:
    """Store one finished trial, in one transaction."""

    task_id: int
    record: TrialRecord


@dataclass(frozen=True, slots=True)
class SetStage:
    """The task moved on: `search`, `finals`, `confirm` or `done`; `note` says what people need."""

    task_id: int
    stage: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Store the outcome of a task, with what race and confirmation measured of each finalist."""

    task_id: int
    selection: SelectionRecord
    baselines: Sequence[BaselineRecord]
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
    """Nothing is left to do. status: `finished`, `interrupted` or `failed`."""

    status: str
    message: str = ""
    #: The fault of the machine that ended the run or one of its tasks, if any.
    fault: Fault | None = None


Instruction: TypeAlias = Build | Measure | Record | SetStage | Select | Finish
