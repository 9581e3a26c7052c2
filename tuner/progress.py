"""The progress of a running campaign: pure data, several times a second."""

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
    """The whole run."""

    #: Finished trials.
    done: int
    #: Planned trials; None while unknown.
    total: int | None
    trials_per_s: float
    #: Share of device time spent measuring since the first device was ready.
    busy_share: float
    elapsed_s: float
    #: Expected seconds until the end, finals included; None while unknown.
    left_s: float | None
    #: Builds at work.
    building: int
    #: Devices at work.
    measuring: int
    tasks_done: int
    #: 0 before the tasks are known.
    tasks_total: int
    #: Only tasks in flight and tasks that have just finished.
    tasks: tuple[TaskProgress, ...] = ()
    #: One word for what the run does: `loading`, `starting`, `building`, `searching`, `racing`,
    #: `confirming`, `verifying`, `measuring`, `tuning` (several tasks), `closing` or `writing`.
    stage: str = ""
    #: The same with figures, such as `searching: 43 trials, best 51.2 us`.
    activity: str = ""

    @classmethod
    def of_stage(cls, stage: str, activity: str = "", elapsed_s: float = 0.0) -> Progress:
        """The progress of a run outside its search, which has no figures."""
        return cls(
            done=0,
            total=None,
            trials_per_s=0.0,
            busy_share=0.0,
            elapsed_s=elapsed_s,
            left_s=None,
            building=0,
            measuring=0,
            tasks_done=0,
            tasks_total=0,
            stage=stage,
            activity=activity or stage,
        )


ProgressCallback: TypeAlias = Callable[[Progress], None]
