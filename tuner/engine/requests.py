"""The `BuildJob` or `MeasureJob` that is sent to a worker for each kind of job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.engine.jobs import Job, Work
from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.engine.trial import Trial
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
    for_check = job.work is Work.CHECK_BUILD
    return job.task.spec.make_build_job(job_id, trial.config, check=for_check)


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
    candidates = frozenset(each.binary_hash for each in request.candidates)
    known = candidates.intersection(task.search.trials.verified)
    return replace(
        request,
        protocol=_protocol(task, request.mode),
        # Confirmations, and tasks that verify, trust no earlier verification.
        verified=known if searches and request.mode is not Mode.CONFIRM else frozenset(),
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
