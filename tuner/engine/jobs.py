"""What a task wants from workers next, as jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from search_spaces.records import Workload
from tuner.engine.task import Task
from tuner.engine.trial import State, TaskSpec, Trial
from workers.measure.timers.methods import METHODS
from workers.records import (
    Artifact,
    BuildJob,
    Check,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    WorkerInfo,
)

#: Finals and confirmations hold many candidates.
_FINALS_TIME = 3.0
#: Candidates of one screening: enough to share an incumbent's samples, few enough to answer soon.
_BATCH = 16
#: A candidate of a GPU is silent this long at most, beside this many times the incumbent's time.
_QUIET_S, _QUIET_RUNS = 5.0, 1000
#: Before there is an incumbent it may be silent for the whole job's time over this.
_QUIET_FIRST = 4


def fits(worker: WorkerInfo, spec: TaskSpec) -> bool:
    """Whether this worker may take the task's jobs: the very device kind, or the interpreter."""
    if spec.compile_only:
        return worker.device.kind == "interpreter"
    if spec.device.kind == "simulated":
        return worker.device.kind == "simulated"
    return worker.device.fingerprint == spec.device.fingerprint


def build(task: Task, trial: Trial, job_id: str, workload: Workload | None = None) -> BuildJob:
    """Build a trial's config, for another workload than the task's where one is given."""
    return BuildJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=workload or task.spec.workload,
        config=trial.config,
        device=task.spec.device,
        timeout_s=task.spec.build_timeout_s,
    )


def incumbent_to_rebuild(task: Task) -> Trial | None:
    """After a resume the incumbent's artifact is not at hand, and screenings wait for it."""
    incumbent = task.search.incumbent
    if incumbent is None or incumbent.artifact is not None or task.spec.compile_only:
        return None
    return incumbent if task.search.count(State.READY) else None


def has_room(task: Task, devices: int, builders: int) -> bool:
    """Builders stay ahead of the devices, but not without bound."""
    return task.search.count(State.READY) < 4 * max(1, devices) + builders


def offered(task: Task) -> bool:
    """Whether there may be a job for a device: who is ready to be measured, or finals."""
    return task.finals is not None or task.search.count(State.READY) > 0


def next_screening(task: Task, idle: int = 1) -> list[Trial]:
    """The ready trials that can be measured now, best prospects first, shared by `idle` devices.

    Until there is an incumbent to pair with, one trial at a time is timed without: nothing tells
    yet for how long one that hangs may be silent. An incumbent whose artifact is not at hand is
    being built again. Who was in a job that failed goes alone. Trials whose time is known from
    another revision go first, for they need no incumbent and may become one.
    """
    ready = task.search.next_ready(task.search.count(State.READY))
    if not ready:
        return []
    if task.spec.compile_only:
        return ready[:1]
    if kept := [trial for trial in ready if task.search.kept_time(trial)]:
        return _batch(kept, idle)
    incumbent = task.search.incumbent
    if incumbent is None:
        return [] if task.search.count(State.MEASURING) else ready[:1]
    if incumbent.artifact is None:
        return []
    return _batch(ready, idle)


def _batch(ready: Sequence[Trial], idle: int) -> list[Trial]:
    together = [trial for trial in ready if not trial.alone]
    share = -(-len(together) // max(1, idle))
    return together[: min(share, _BATCH)] or [*ready[:1]]


def preparation(task: Task, job_id: str) -> MeasureJob:
    """Have a device make the task's inputs and references, before there is anybody to measure."""
    return MeasureJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        candidates=(),
        mode=Mode.SCREENING,
        protocol=_protocol(task),
        timeout_s=task.spec.measure_timeout_s,
    )


def screening(task: Task, trials: Sequence[Trial], job_id: str) -> MeasureJob:
    """Verify the trials and screen them against the incumbent; only verify what is not timed, or
    has a time."""
    verify = task.spec.compile_only or task.search.kept_time(trials[0]) is not None
    for trial in trials:
        task.search.move(trial, State.MEASURING)
        trial.screened_against = None if verify else task.search.incumbent
    screened_against = trials[0].screened_against
    field = [trial.artifact for trial in trials] + (
        [screened_against.artifact] if screened_against else []
    )
    artifacts = tuple(artifact for artifact in field if artifact is not None)
    return MeasureJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        candidates=artifacts,
        mode=Mode.VERIFY if verify else Mode.SCREENING,
        incumbent=screened_against is not None,
        verified=_verified(task, artifacts),
        protocol=_protocol(task),
        timeout_s=task.spec.measure_timeout_s * max(1.0, len(artifacts) / 4),
        candidate_timeout_s=_quiet_s(task),
    )


def final(task: Task, job_id: str) -> MeasureJob | None:
    """The race of the finalists or the confirmation, once all their artifacts are there."""
    finals = task.finals
    if finals is None or finals.in_flight or finals.mode is None or finals.missing():
        return None
    confirm = finals.mode is Mode.CONFIRM
    baselines = task.spec.baselines if confirm else ()
    if confirm and finals.unchecked():
        return None
    finals.in_flight = True
    artifacts = tuple(t.artifact for t in finals.candidates() if t.artifact is not None)
    odd = finals.candidates()[0].check_artifact if confirm else None
    checks: tuple[Check, ...] = ()
    if task.spec.check_size is not None and isinstance(odd, Artifact):
        checks = (Check(task.spec.check_size, odd),)
    return MeasureJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        candidates=artifacts,
        mode=finals.mode,
        baselines=baselines,
        verified=frozenset() if confirm else _verified(task, artifacts),
        checks=checks,
        protocol=_protocol(task),
        timeout_s=task.spec.measure_timeout_s * _FINALS_TIME
        + task.spec.baseline_timeout_s * len(baselines),
        candidate_timeout_s=_quiet_s(task),
        baseline_timeout_s=task.spec.baseline_timeout_s,
    )


def method_of(result: Measurement) -> str:
    """The method of a measurement, where there was a choice."""
    return result.method if result.method in METHODS else ""


def _protocol(task: Task) -> MeasurementProtocol:
    """The task's protocol, with the method its variants have been timed by so far."""
    protocol = task.spec.protocol
    if task.method and protocol.method == "auto":
        return replace(protocol, method=task.method)
    return protocol


def _quiet_s(task: Task) -> float:
    """How long one candidate may go without a sign of life before it is taken to hang."""
    spec, incumbent = task.spec, task.search.incumbent
    if spec.device.kind not in ("cuda", "hip"):
        return spec.measure_timeout_s
    if incumbent is None or incumbent.score is None:
        return spec.measure_timeout_s / _QUIET_FIRST
    runs_s = _QUIET_RUNS * math.exp(incumbent.score) / 1e6
    return min(spec.measure_timeout_s, _QUIET_S + runs_s)


def _verified(task: Task, candidates: Sequence[Artifact]) -> frozenset[str]:
    """Which of the candidates are known to be correct; not all that are, for jobs are sent
    around."""
    return frozenset(a.binary_hash for a in candidates) & task.search.verified
