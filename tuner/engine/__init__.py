"""The coordinator of a run without I/O: events in, instructions out."""

from __future__ import annotations

from results_db.stored_records import Stage
from tuner.engine.engine import Engine
from tuner.engine.instructions import (
    Build,
    BuildersChanged,
    Drain,
    Event,
    Finish,
    Instruction,
    Measure,
    Record,
    Select,
    SetStage,
    Tick,
)
from tuner.engine.task_progress import progress
from tuner.engine.task_spec import Aim, TaskBudget, TaskSpec

__all__ = [
    "Aim",
    "Build",
    "BuildersChanged",
    "Drain",
    "Engine",
    "Event",
    "Finish",
    "Instruction",
    "Measure",
    "Record",
    "Select",
    "SetStage",
    "Stage",
    "TaskBudget",
    "TaskSpec",
    "Tick",
    "progress",
]
