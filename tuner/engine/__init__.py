"""The coordinator of a run without I/O: events in, instructions out."""

from __future__ import annotations

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
from tuner.engine.snapshot import progress
from tuner.engine.spec import TaskBudget, TaskSpec
from tuner.engine.stage import Stage

__all__ = [
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
