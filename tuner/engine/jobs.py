"""The jobs that the engine gives to workers, and which ready trials are measured together.

The dispatcher keeps the job of every job id in flight. `requests` makes the record that is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.engine.trial import Trial, TrialState

#: Candidates of one job: enough to share the incumbent's samples, few enough to answer soon.
_BATCH = 16


class Work(StrEnum):
    """What a job does, as messages name it."""

    #: Builds a trial for the task's workload, or again for the finals.
    BUILD = "build"
    CHECK_BUILD = "build at the check size"
    #: Makes the task's inputs and references on a device. No candidate is measured.
    PREPARATION = "preparation"
    #: Verifies trials without timing them: compile-only, or their times are known.
    VERIFICATION = "verification"
    #: Verifies trials and compares them with the incumbent.
    SCREENING = "screening"
    #: Compares the given configs of a task with its baselines in a fresh process.
    COMPARISON = "comparison"
    #: Compares all finalists of the task.
    RACE = "race"
    #: Measures the winner against runner-up, default and baselines in a fresh process.
    CONFIRMATION = "confirmation"


@dataclass(frozen=True, slots=True)
class Job:
    """Some work on a task, for a builder or a device."""

    work: Work
    task: Task
    #: The worker of the device; empty for builders.
    worker_id: str = ""
    #: The trials that wait for the result: one of a build, none of finals and preparations.
    trials: tuple[Trial, ...] = ()
    #: What a screening compares with; None for the first trial of a task, which is timed alone.
    incumbent: Trial | None = None

    @property
    def builds(self) -> bool:
        """Whether it is for a builder."""
        return self.work in (Work.BUILD, Work.CHECK_BUILD)

    @property
    def searches(self) -> bool:
        """Whether it measures trials of the search, or given ones."""
        return self.work in (Work.VERIFICATION, Work.SCREENING, Work.COMPARISON)

    @property
    def decides(self) -> bool:
        """Whether it measures finalists."""
        return self.work in (Work.RACE, Work.CONFIRMATION)

    def __str__(self) -> str:
        numbers = ", ".join(f"{trial.number}" for trial in self.trials)
        trials = f" of trial {numbers}" if numbers else ""
        return f"{self.work}{trials}" + (f" on {self.worker_id}" if self.worker_id else "")


def next_batch(task: Task, worker_id: str, idle: int = 1) -> Job | None:
    """The next job for trials that are built, or None. Those of a search are shared by `idle`
    devices.

    Trials with a known time go first, for they need no incumbent and may become one. Without an
    incumbent, one trial at a time is timed: how long a hanging one may be silent is not known yet.
    While the incumbent's artifact is being rebuilt, nothing is screened.
    """
    search, aim = task.search, task.spec.aim
    if aim is not Aim.SEARCH:
        given = tuple(search.list_given())
        work = Work.COMPARISON if aim is Aim.COMPARE else Work.VERIFICATION
        return Job(work, task, worker_id, given) if given else None
    ready = search.order_ready()
    if not ready:
        return None
    if task.spec.compile_only:
        return Job(Work.VERIFICATION, task, worker_id, tuple(ready[:1]))
    if kept := [trial for trial in ready if search.kept_time(trial)]:
        return Job(Work.VERIFICATION, task, worker_id, _share(kept, idle))
    incumbent = search.incumbent
    if incumbent is None:
        first = () if search.trials.count(TrialState.MEASURING) else tuple(ready[:1])
        return Job(Work.SCREENING, task, worker_id, first) if first else None
    if incumbent.artifact is None:
        return None
    return Job(Work.SCREENING, task, worker_id, _share(ready, idle), incumbent)


def _share(ready: Sequence[Trial], idle: int) -> tuple[Trial, ...]:
    """One device's share of the trials. Trials that must be alone are left to the last."""
    together = [trial for trial in ready if not trial.alone]
    share = -(-len(together) // max(1, idle))
    return tuple(together[: min(share, _BATCH)] or ready[:1])
