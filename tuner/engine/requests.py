"""The `BuildJob` or `MeasureJob` that is sent to a worker for each kind of job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.engine.jobs import (
    AnyBuild,
    CheckSizeBuild,
    Confirmation,
    DeviceJob,
    Preparation,
    Race,
    Screening,
    TrialMeasurement,
    Verification,
)
from tuner.engine.task import Task
from tuner.engine.trial import Trial
from workers import backend_kinds
from workers.job_records import (
    Artifact,
    BuildJob,
    Check,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
)
from workers.measure.timers.methods import METHODS

#: Races and confirmations have many candidates: they get this many times the time of a screening.
_FINALS_TIME = 3.0
#: A screening gets the task's time limit for each group of this many candidates.
_CANDIDATES_PER_LIMIT = 4
#: A candidate on a GPU may be silent for this long plus this many times the incumbent's time.
_SILENT_S, _SILENT_RUNS = 5.0, 1000
#: Jobs that a confirmation follows.
_BEFORE_CONFIRMATION = (Mode.SCREENING, Mode.RACE)
#: Without an incumbent it may be silent for this fraction of the job's time limit.
_SILENT_FIRST = 1 / 4


def build_request(job: AnyBuild, job_id: str) -> BuildJob:
    """The build of a trial's config, for the task's workload or its check size."""
    spec = job.task.spec
    workload = spec.workload
    if isinstance(job, CheckSizeBuild) and spec.check_size is not None:
        workload = spec.check_size
    return BuildJob(
        job_id=job_id,
        kernel=spec.kernel,
        workload=workload,
        config=job.trial.config,
        device=spec.device,
        timeout_s=spec.build_timeout_s,
    )


def measure_request(job: DeviceJob, job_id: str) -> MeasureJob:
    """The measurement that a device job asks for."""
    match job:
        case Preparation():
            return _request(job, job_id, Mode.SCREENING, ())
        case Screening() | Verification():
            return _trials_request(job, job_id)
        case Race():
            return _race_request(job, job_id)
        case Confirmation():
            return _confirmation_request(job, job_id)


def method_of(result: Measurement) -> str:
    """The timing method of a measurement; empty where the device has one method only."""
    return result.method if result.method in METHODS else ""


def _trials_request(job: TrialMeasurement, job_id: str) -> MeasureJob:
    incumbent = job.incumbent if isinstance(job, Screening) else None
    candidates = _artifacts([*job.trials, *([incumbent] if incumbent else [])])
    limit_s = job.task.spec.measure_timeout_s
    return replace(
        _request(
            job,
            job_id,
            Mode.SCREENING if isinstance(job, Screening) else Mode.VERIFY,
            candidates,
        ),
        incumbent=incumbent is not None,
        verified=_list_verified(job.task, candidates),
        timeout_s=limit_s * max(1.0, len(candidates) / _CANDIDATES_PER_LIMIT),
        candidate_timeout_s=_silence_limit_s(job.task),
    )


def _race_request(job: Race, job_id: str) -> MeasureJob:
    task = job.task
    assert task.finals is not None
    candidates = _artifacts(task.finals.candidates())
    return replace(
        _request(job, job_id, Mode.RACE, candidates),
        verified=_list_verified(task, candidates),
        timeout_s=task.spec.measure_timeout_s * _FINALS_TIME,
        candidate_timeout_s=_silence_limit_s(task),
    )


def _confirmation_request(job: Confirmation, job_id: str) -> MeasureJob:
    spec, finals = job.task.spec, job.task.finals
    assert finals is not None
    winner, *_ = candidates = finals.candidates()
    checks: tuple[Check, ...] = ()
    if spec.check_size is not None and isinstance(winner.check_artifact, Artifact):
        checks = (Check(spec.check_size, winner.check_artifact),)
    baselines_s = spec.baseline_timeout_s * len(spec.baselines)
    return replace(
        _request(job, job_id, Mode.CONFIRM, _artifacts(candidates)),
        baselines=spec.baselines,
        checks=checks,
        timeout_s=spec.measure_timeout_s * _FINALS_TIME + baselines_s,
        candidate_timeout_s=_silence_limit_s(job.task),
    )


def _request(
    job: DeviceJob, job_id: str, mode: Mode, candidates: tuple[Artifact, ...]
) -> MeasureJob:
    spec = job.task.spec
    return MeasureJob(
        job_id=job_id,
        kernel=spec.kernel,
        workload=spec.workload,
        candidates=candidates,
        mode=mode,
        protocol=_protocol(job.task),
        timeout_s=spec.measure_timeout_s,
        baseline_timeout_s=spec.baseline_timeout_s,
        upcoming_baselines=spec.baselines if mode in _BEFORE_CONFIRMATION else (),
    )


def _artifacts(trials: Sequence[Trial]) -> tuple[Artifact, ...]:
    return tuple(trial.artifact for trial in trials if trial.artifact is not None)


def _protocol(task: Task) -> MeasurementProtocol:
    """The task's protocol; once its timing method is known, every later job uses that method."""
    protocol = task.spec.protocol
    if task.method and protocol.method == "auto":
        return replace(protocol, method=task.method)
    return protocol


def _silence_limit_s(task: Task) -> float:
    """How long a candidate may give no heartbeat before it counts as a hang."""
    spec, incumbent = task.spec, task.search.incumbent
    if not backend_kinds.spec_of_stored(spec.device.kind).accelerator:
        return spec.measure_timeout_s
    if incumbent is None or incumbent.score is None:
        return spec.measure_timeout_s * _SILENT_FIRST
    runs_s = _SILENT_RUNS * math.exp(incumbent.score) / 1e6
    return min(spec.measure_timeout_s, _SILENT_S + runs_s)


def _list_verified(task: Task, candidates: Sequence[Artifact]) -> frozenset[str]:
    """Digests of those candidates that are known to be correct; a job carries no others."""
    return frozenset(a.binary_hash for a in candidates) & task.search.verified
