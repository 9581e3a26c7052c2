"""A pool that stays started between runs, so that later runs find warm workers.

    kept = KeptPool()
    run_campaign(..., create_pool=kept.for_run)     # starts it
    run_campaign(..., create_pool=kept.for_run)     # gets its workers at once
    kept.end()

Each run starts and closes the pool that it is given. Here, `start` after the first one announces
the ready workers, and `close` only ends the jobs of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workers import pools
from workers.environment import code_variables
from workers.job_records import (
    BuildJob,
    Built,
    DeclarationJob,
    JobLost,
    Measured,
    MeasureJob,
    PoolEvent,
    PoolSpec,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)
from workers.roles import PendingAnswer, Pool


class KeptPool(Pool):
    """One pool at a time, for one run at a time; implements `workers.roles.Pool`.

    create: makes the pool behind it, by default one of the kind in the spec.
    """

    def __init__(self, create: Callable[[PoolSpec], Pool] = pools.create) -> None:
        self._create = create
        self._spec: PoolSpec | None = None
        self._variables = code_variables()
        self._pool: Pool | None = None
        #: Runners of the pool when it started.
        self._started_runners = 0
        #: The number of the present run; job ids begin with it.
        self._run = 0
        self._ready: dict[str, WorkerInfo] = {}
        #: Jobs without an answer, of all runs; each with its runner, or empty text for a build.
        self._jobs: dict[str, str] = {}
        #: Events that the next `poll` returns.
        self._events: list[PoolEvent] = []
        self._failed = False

    # -- between runs ------------------------------------------------------------------------------
    def for_run(self, spec: PoolSpec) -> KeptPool:
        """This pool, prepared for a run that needs the workers of `spec`.

        Kinds of runners that earlier runs needed are kept. The pool behind it is replaced where it
        lacks a kind, where anything else in the spec or the variables that change code has changed,
        and where it has lost a runner for good.
        """
        # A later run may bring kernels that need torch for their builds.
        spec = _with_kinds_of(self._spec, replace(spec, torch_free=False))
        damaged = self._pool is not None and self._pool.runners < self._started_runners
        variables = code_variables()
        if spec != self._spec or damaged or variables != self._variables:
            self.end()
        self._spec, self._variables = spec, variables
        return self

    def replace_workers(self) -> None:
        """Replace all worker processes, because they hold code that has changed since."""
        pool, self._pool = self._pool, None
        self._forget_workers()
        if pool is None:
            return
        self._pool = pool.renew()
        if self._pool is not None:
            self._start_pool(self._pool)

    def end(self) -> None:
        """End all worker processes; a later run starts others."""
        pool, self._pool = self._pool, None
        self._forget_workers()
        if pool is not None:
            pool.close(kill=True)

    @property
    def started(self) -> bool:
        """Whether worker processes exist, or are starting."""
        return self._pool is not None

    # -- the role ----------------------------------------------------------------------------------
    @property
    def builders(self) -> int:
        return self._pool.builders if self._pool is not None else 0

    @property
    def runners(self) -> int:
        return self._pool.runners if self._pool is not None else 0

    @property
    def warm(self) -> bool:
        return self._pool is not None and self._pool.warm

    def clock(self) -> float:
        assert self._pool is not None, "start comes first"
        return self._pool.clock()

    def start(self) -> None:
        self._run += 1
        if self._pool is None:
            assert self._spec is not None, "for_run comes first"
            self._pool = self._create(self._spec)
            self._start_pool(self._pool)
            return
        self._take(self._pool.poll(0.0))
        self._events = [
            WorkerReady(info)
            for worker_id, info in self._ready.items()
            if worker_id not in self._jobs.values()
        ]

    def describe_workers(self) -> Sequence[WorkerInfo] | None:
        """The runners: those that are ready, or all as the pool behind it describes them."""
        assert self._pool is not None, "start comes first"
        if len(self._ready) >= self._pool.runners:
            return list(self._ready.values())
        return self._pool.describe_workers()

    def check_declarations(self, jobs: Sequence[DeclarationJob]) -> PendingAnswer | None:
        assert self._pool is not None, "start comes first"
        return self._pool.check_declarations(jobs)

    def submit_build(self, job: BuildJob) -> None:
        assert self._pool is not None, "start comes first"
        job = replace(job, job_id=self._number(job.job_id))
        self._jobs[job.job_id] = ""
        self._pool.submit_build(job)

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        assert self._pool is not None, "start comes first"
        job = replace(job, job_id=self._number(job.job_id))
        self._jobs[job.job_id] = worker_id
        self._pool.submit_measure(worker_id, job)

    def poll(self, timeout_s: float) -> Sequence[PoolEvent]:
        assert self._pool is not None, "start comes first"
        events, self._events = self._events, []
        try:
            return [*events, *self._take(self._pool.poll(0.0 if events else timeout_s))]
        except Exception:
            self._failed = True
            raise

    def close(self, *, kill: bool = False) -> None:
        """End the run. With `kill`, jobs in flight end with all worker processes."""
        self._events = []
        if self._failed or (kill and self._jobs):
            self.end()

    # -- inside ------------------------------------------------------------------------------------
    def _start_pool(self, pool: Pool) -> None:
        try:
            pool.start()
        except BaseException:
            self._pool = None
            pool.close(kill=True)
            raise
        self._started_runners = pool.runners

    def _forget_workers(self) -> None:
        self._ready, self._jobs, self._events, self._failed = {}, {}, [], False

    def _number(self, job_id: str) -> str:
        return f"{self._run}:{job_id}"

    def _take(self, events: Sequence[PoolEvent]) -> list[PoolEvent]:
        """Events of the pool as the present run sees them."""
        seen: list[PoolEvent] = []
        for event in events:
            match event:
                case WorkerReady():
                    self._ready[event.worker.worker_id] = event.worker
                    seen.append(event)
                case WorkerGone():
                    self._ready.pop(event.worker_id, None)
                    seen.append(event)
                case Built() | Measured() | JobLost():
                    seen += self._answer(event)
        return seen

    def _answer(self, event: Built | Measured | JobLost) -> list[PoolEvent]:
        """An answer to the present run. One to an earlier run makes its runner free for this."""
        worker_id = self._jobs.pop(event.job_id, "")
        run, _, job_id = event.job_id.partition(":")
        if run == f"{self._run}":
            return [replace(event, job_id=job_id)]
        info = self._ready.get(worker_id)
        return [WorkerReady(info)] if info is not None else []


def _with_kinds_of(before: PoolSpec | None, spec: PoolSpec) -> PoolSpec:
    """The spec with the runners of an earlier one, where nothing else differs."""
    if before is None:
        return spec
    both = replace(
        spec,
        runners={**before.runners, **spec.runners},
        options={**before.options, **spec.options},
    )
    alike = replace(before, runners={}, options={}) == replace(spec, runners={}, options={})
    return both if alike else spec
