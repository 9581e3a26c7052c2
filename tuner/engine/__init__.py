"""The I/O-free coordinator of a run: events in, instructions out."""

from __future__ import annotations

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
from tuner.engine.machine import Engine
from tuner.engine.trial import TaskBudget, TaskSpec
from tuner.engine.view import progress

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
