"""The jobs that the engine gives to workers, and which ready trials are measured together.

The dispatcher keeps the job of every job id in flight. `requests` makes the record that is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.engine.trial_table import Trial, TrialState
from workers import backend_kinds
from workers.job_records import (
    Artifact,
    BuildJob,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
)
from workers.measure.timers.methods import METHODS
from workers.measured_task import FINALS_TIME

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


def next_batch(task: Task, worker_id: str, count_idle: Callable[[], int]) -> Job | None:
    """The next job for trials that are built, or None.

    count_idle: counts the idle devices that share those of a search, which takes a while.

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
        return Job(Work.VERIFICATION, task, worker_id, _share(kept, count_idle()))
    incumbent = search.incumbent
    if incumbent is None:
        first = () if search.trials.count(TrialState.MEASURING) else tuple(ready[:1])
        return Job(Work.SCREENING, task, worker_id, first) if first else None
    if incumbent.artifact is None:
        return None
    return Job(Work.SCREENING, task, worker_id, _share(ready, count_idle()), incumbent)


def _share(ready: Sequence[Trial], idle: int) -> tuple[Trial, ...]:
    """One device's share of the trials. Trials that must be alone are left to the last."""
    together = [trial for trial in ready if not trial.alone]
    share = -(-len(together) // max(1, idle))
    return tuple(together[: min(share, _BATCH)] or ready[:1])


# -- the `BuildJob` or `MeasureJob` that is sent to a worker for each kind of job ------------------
#: A screening gets the task's time limit for each group of this many candidates.
_CANDIDATES_PER_LIMIT = 4
#: A candidate on a GPU may be silent for this long plus this many times the incumbent's time.
_SILENT_S, _SILENT_RUNS = 5.0, 1000
#: Jobs that a confirmation follows.
_BEFORE_CONFIRMATION = (Mode.SCREENING, Mode.RACE)
#: Making the inputs and references of a task may be silent for this long.
_SILENT_PREPARATION_S = 60.0
#: Without an incumbent it may be silent for this fraction of the job's time limit.
_SILENT_FIRST = 1 / 4
#: The noise of a search, ln(ratio), from which few samples say little.
_NOISY = math.log(1.10)


def build_request(job: Job, job_id: str) -> BuildJob:
    """The build of a trial's config, for the task's workload or its check size."""
    (trial,) = job.trials
    for_check, spec = job.work is Work.CHECK_BUILD, job.task.spec
    return spec.make_build_job(
        job_id,
        trial.config,
        check=for_check,
        refuse_spills=not for_check and not spec.was_asked_for(trial.strategy),
    )


def measure_request(job: Job, job_id: str) -> MeasureJob:
    """The measurement that a device job asks for."""
    task, spec = job.task, job.task.spec
    preparing = job.work is Work.PREPARATION
    silent_s = _SILENT_PREPARATION_S if preparing else _silence_limit_s(task)
    match job.work:
        case Work.PREPARATION:
            request = spec.make_measure_job(job_id, Mode.SCREENING, ())
        case Work.RACE:
            request = spec.make_measure_job(job_id, Mode.RACE, _finalists(task))
            request = replace(request, timeout_s=spec.measure_timeout_s * FINALS_TIME)
        case Work.CONFIRMATION:
            first = task.finals.candidates()[0] if task.finals else None
            request = spec.make_confirmation(job_id, _finalists(task), _check_of(first))
        case Work.COMPARISON:
            built = _artifacts(job.trials)
            request = spec.make_confirmation(job_id, built, _check_of(job.trials[0]))
        case _:
            request = _trials_request(job, job_id)
    searches = spec.aim is Aim.SEARCH
    # A variant that is not checked shows no bits.
    trusts = searches and request.mode is not Mode.CONFIRM and spec.rows is None
    candidates = frozenset(each.binary_hash for each in request.candidates)
    known = candidates.intersection(task.search.trials.verified)
    return replace(
        request,
        protocol=_protocol(task, request.mode),
        # Confirmations, and tasks that verify, trust no earlier verification.
        verified=known if trusts else frozenset(),
        rows=spec.rows,
        candidate_timeout_s=silent_s,
        upcoming_baselines=spec.baselines if request.mode in _BEFORE_CONFIRMATION else (),
    )


def method_of(result: Measurement) -> str:
    """The timing method of a measurement; empty where the device has one method only."""
    return result.method if result.method in METHODS else ""


def _trials_request(job: Job, job_id: str) -> MeasureJob:
    spec, incumbent = job.task.spec, job.incumbent
    candidates = _artifacts([*job.trials, *([incumbent] if incumbent else [])])
    mode = Mode.SCREENING if job.work is Work.SCREENING else Mode.VERIFY
    check = _check_of(job.trials[0]) if spec.aim is Aim.VERIFY else None
    return replace(
        spec.make_measure_job(job_id, mode, candidates, check),
        incumbent=incumbent is not None,
        timeout_s=spec.measure_timeout_s * max(1.0, len(candidates) / _CANDIDATES_PER_LIMIT),
    )


def _check_of(trial: Trial | None) -> Artifact | None:
    built = None if trial is None else trial.check_artifact
    return built if isinstance(built, Artifact) else None


def _finalists(task: Task) -> tuple[Artifact, ...]:
    assert task.finals is not None
    return _artifacts(task.finals.candidates())


def _artifacts(trials: Sequence[Trial]) -> tuple[Artifact, ...]:
    return tuple(trial.artifact for trial in trials if trial.artifact is not None)


def _protocol(task: Task, mode: Mode) -> MeasurementProtocol:
    """The task's protocol; once its timing method is known, every later job uses that method.

    Where times of one config differ by a tenth, a screening that would stop after a few samples
    stops at ratios that are larger by that difference.
    """
    protocol = task.spec.protocol
    if task.method and protocol.method == "auto":
        protocol = replace(protocol, method=task.method)
    noise = task.search.noise() if mode is Mode.SCREENING else 0.0
    if noise > _NOISY:
        factor = math.exp(noise)
        protocol = replace(protocol, cap=factor * protocol.cap, near=factor * protocol.near)
    return protocol


def _silence_limit_s(task: Task) -> float:
    """How long a candidate may give no heartbeat before it counts as a hang."""
    spec, incumbent = task.spec, task.search.incumbent
    accelerator = backend_kinds.spec_of_stored(spec.device.kind).accelerator
    if spec.aim is not Aim.SEARCH or not accelerator:
        return spec.measure_timeout_s
    if incumbent is None or incumbent.score is None:
        return spec.measure_timeout_s * _SILENT_FIRST
    runs_s = _SILENT_RUNS * math.exp(incumbent.score) / 1e6
    return min(spec.measure_timeout_s, _SILENT_S + runs_s)
