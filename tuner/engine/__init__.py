"""The I/O-free coordinator of a run: events in, instructions out."""

from __future__ import annotations

from tuner.engine.engine import Engine
from tuner.engine.instructions import (
    Build,
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
from tuner.engine.trial import TaskBudget, TaskSpec

__all__ = [
    "Build",
    "Drain",
    "Engine",
    "Event",
    "Finish",
    "Instruction",
    "Measure",
    "Record",
    "Select",
    "SetStage",
    "TaskBudget",
    "TaskSpec",
    "Tick",
    "progress",
]
