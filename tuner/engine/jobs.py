"""The jobs that the engine gives to workers, one type for each kind.

The dispatcher keeps the job of every job id in flight. `requests` makes the record that is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tuner.engine.task import Task
from tuner.engine.trial import Trial


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """Build a trial for the task's workload, or rebuild it for the finals."""

    task: Task
    trial: Trial


@dataclass(frozen=True, slots=True)
class CheckSizeBuild:
    """Build a trial's config for the task's check size."""

    task: Task
    trial: Trial


@dataclass(frozen=True, slots=True)
class Preparation:
    """Make the task's inputs and references on a device. No candidate is measured."""

    task: Task
    worker_id: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Verify trials without timing them: compile-only, or their times are known."""

    task: Task
    worker_id: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Screening:
    """Verify trials and compare them with the incumbent."""

    task: Task
    worker_id: str
    trials: tuple[Trial, ...]
    #: None for the first trial of a task, which is timed alone.
    incumbent: Trial | None


@dataclass(frozen=True, slots=True)
class Race:
    """Compare all finalists of the task."""

    task: Task
    worker_id: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Measure the winner against runner-up, default and baselines in a fresh process."""

    task: Task
    worker_id: str


#: Jobs for builders.
AnyBuild: TypeAlias = TrialBuild | CheckSizeBuild
#: Jobs that measure trials of the search.
TrialMeasurement: TypeAlias = Verification | Screening
#: Jobs that measure finalists.
FinalMeasurement: TypeAlias = Race | Confirmation
#: Jobs for devices.
DeviceJob: TypeAlias = Preparation | TrialMeasurement | FinalMeasurement
Job: TypeAlias = AnyBuild | DeviceJob


def trials_of(job: Job) -> tuple[Trial, ...]:
    """The trials that wait for the result of this job; none for finalists and preparations."""
    if isinstance(job, AnyBuild):
        return (job.trial,)
    return job.trials if isinstance(job, TrialMeasurement) else ()


_NAMES = {
    TrialBuild: "build",
    CheckSizeBuild: "build at the check size",
    Preparation: "preparation",
    Verification: "verification",
    Screening: "screening",
    Race: "race",
    Confirmation: "confirmation",
}


def describe(job: Job) -> str:
    """A job in words, for messages: what it does, for which trials, on which worker."""
    numbers = ", ".join(str(trial.number) for trial in trials_of(job))
    trials = f" of trial {numbers}" if numbers else ""
    worker = "" if isinstance(job, AnyBuild) else f" on {job.worker_id}"
    return f"{_NAMES[type(job)]}{trials}{worker}"
