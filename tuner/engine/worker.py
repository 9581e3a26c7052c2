"""A runner as the engine sees it, and which tasks it can serve."""

from __future__ import annotations

from dataclasses import dataclass

from results_db.stored_records import Stage
from tuner.engine.task import Task
from tuner.engine.task_spec import TaskSpec
from workers import backend_kinds
from workers.job_records import WorkerInfo

#: Tasks whose inputs and references a device process holds.
CACHED_TASKS = 4


@dataclass(slots=True, eq=False)
class Worker:
    """A runner with the job it has and the tasks it served last."""

    info: WorkerInfo
    #: Its job; None while it is idle.
    job_id: str | None = None
    #: The engine's clock when the job was given.
    since: float = 0.0
    #: The tasks whose inputs its process holds, the latest first.
    cached: tuple[Task, ...] = ()
    #: A task that it has prepared and not measured yet.
    prefetched: Task | None = None

    @property
    def worker_id(self) -> str:
        return self.info.worker_id

    def take(self, task: Task, job_id: str, now: float) -> None:
        """Note that it has been given a job of the task."""
        others = (other for other in self.cached if other is not task)
        self.cached = (task, *others)[:CACHED_TASKS]
        self.job_id, self.since = job_id, now
        self.prefetched = None if task is self.prefetched else self.prefetched

    def cache_rank(self, task: Task) -> int:
        """The task's place among its cached tasks, 0 for the latest; CACHED_TASKS if not cached."""
        ranks = (rank for rank, other in enumerate(self.cached) if other is task)
        return next(ranks, CACHED_TASKS)

    @property
    def has_unused_prefetch(self) -> bool:
        """Whether a task that it has prepared is still being searched."""
        return self.prefetched is not None and self.prefetched.stage is Stage.SEARCH

    def serves(self, spec: TaskSpec) -> bool:
        """Whether it may take the task's jobs: it has that device, or stands in for it."""
        device, backend = self.info.device, backend_kinds.spec_of_stored(spec.device.kind)
        if spec.compile_only:
            return device.kind == backend.stand_in
        if backend.replayed:
            return device.kind == backend.kind
        return device.fingerprint == spec.device.fingerprint
