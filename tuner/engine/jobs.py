"""What a task wants from workers next, as jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.engine.finals import Finals
from tuner.engine.task import Search, State, TaskSpec, Trial
from workers.records import Artifact, BuildJob, MeasureJob, Mode, WorkerInfo

#: Finals and confirmations hold many entrants, and baselines that torch.compile has to build.
_FINALS_TIME = 3.0


@dataclass(slots=True)
class Task:
    """A task on its way: `waiting`, `search`, `finals`, `confirm`, `done`."""

    search: Search
    stage: str = "waiting"
    finals: Finals | None = None

    @property
    def spec(self) -> TaskSpec:
        return self.search.spec


def fits(worker: WorkerInfo, spec: TaskSpec) -> bool:
    """Whether this worker may take the task's jobs: the very device kind, or the interpreter."""
    if spec.compile_only:
        return worker.device.kind == "interpreter"
    if spec.device.kind == "simulated":
        return worker.device.kind == "simulated"
    return worker.device.fingerprint == spec.device.fingerprint


def build(task: Task, trial: Trial, job_id: str) -> BuildJob:
    return BuildJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        config=trial.config,
        device=task.spec.device,
        timeout_s=task.spec.build_timeout_s,
    )


def champion_to_rebuild(task: Task) -> Trial | None:
    """After a resume the champion's artifact is not at hand, and duels wait for it."""
    champion = task.search.champion
    if champion is None or champion.artifact is not None or task.spec.compile_only:
        return None
    return champion if task.search.count(State.READY) else None


def has_room(task: Task, devices: int, builders: int) -> bool:
    """Builders stay ahead of the devices, but not without bound."""
    return task.search.count(State.READY) < 4 * max(1, devices) + builders


def next_duel(task: Task) -> Trial | None:
    """The ready trial asked first, if it can be measured now.

    Until there is a champion to pair with, one trial at a time is timed alone; a champion whose
    artifact is not at hand is being built again.
    """
    if not task.spec.compile_only:
        champion = task.search.champion
        if champion is None and task.search.count(State.MEASURING):
            return None
        if champion is not None and champion.artifact is None:
            return None
    return task.search.first(State.READY)


def duel(task: Task, trial: Trial, job_id: str) -> MeasureJob:
    """Verify the trial and race it against the champion; only verify it where nothing is timed."""
    task.search.move(trial, State.MEASURING)
    trial.rival = None if task.spec.compile_only else task.search.champion
    pair = (trial.artifact, trial.rival.artifact if trial.rival else None)
    artifacts = tuple(artifact for artifact in pair if artifact is not None)
    return MeasureJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        entrants=artifacts,
        mode=Mode.VERIFY if task.spec.compile_only else Mode.DUEL,
        verified=_verified(task, artifacts),
        protocol=task.spec.protocol,
        timeout_s=task.spec.measure_timeout_s,
    )


def _verified(task: Task, entrants: Sequence[Artifact]) -> frozenset[str]:
    """Which of the entrants are known to be correct; not all that are, for jobs are sent around."""
    return frozenset(a.binary_hash for a in entrants) & task.search.verified


def final(task: Task, job_id: str) -> MeasureJob | None:
    """The race of the finalists or the confirmation, once all their artifacts are there."""
    finals = task.finals
    if finals is None or finals.in_flight or finals.mode is None or finals.missing():
        return None
    finals.in_flight = True
    confirm = finals.mode is Mode.CONFIRM
    artifacts = tuple(t.artifact for t in finals.entrants() if t.artifact is not None)
    return MeasureJob(
        job_id=job_id,
        kernel=task.spec.kernel,
        workload=task.spec.workload,
        entrants=artifacts,
        mode=finals.mode,
        baselines=task.spec.baselines if confirm else (),
        verified=frozenset() if confirm else _verified(task, artifacts),
        protocol=task.spec.protocol,
        timeout_s=task.spec.measure_timeout_s * _FINALS_TIME,
    )
