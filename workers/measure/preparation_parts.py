"""The parts of preparing a confirmation, which the standby process does one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartKind(StrEnum):
    """What a part does."""

    #: Import the compiler of baselines. Like `COMPILE`, it leaves the device alone.
    IMPORT = "import"
    #: Make the task's inputs and references.
    TASK = "task"
    #: Compile a baseline without launching it.
    COMPILE = "compile"
    #: Warm a baseline up and check its outputs. It compiles nothing.
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class PreparationPart:
    """One part of preparing the confirmation of one task."""

    kind: PartKind
    #: The name of the baseline; empty for parts that concern all of them.
    baseline: str = ""

    @property
    def on_device(self) -> bool:
        """Whether it launches work on the device."""
        return self.kind in (PartKind.TASK, PartKind.LAUNCH)


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of a part."""

    #: False: the confirmation does this part itself.
    done: bool
    #: Baselines that must be compiled before they are launched.
    compile_first: tuple[str, ...] = ()
