"""What a running campaign reports to whoever watches: pure data, several times a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One task: label, stage (`search`, `finals`, `confirm`, `done`), trials done and planned."""

    label: str
    stage: str
    done: int
    total: int | None
    #: The fastest trial of the search, in microseconds; a confirmation may find another time.
    best_us: float | None = None
    #: The confirmed time of the config that ships, in microseconds.
    confirmed_us: float | None = None
    #: How many times faster than the default config that one is; 1 if it is the default.
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole run. busy_share: share of device time spent measuring since the first was ready.

    total and left_s are None while unknown. tasks holds only tasks in flight and just finished.
    """

    done: int
    total: int | None
    trials_per_s: float
    busy_share: float
    elapsed_s: float
    left_s: float | None
    building: int
    measuring: int
    tasks_done: int
    tasks_total: int
    tasks: tuple[TaskProgress, ...] = ()


ProgressCallback: TypeAlias = Callable[[Progress], None]
