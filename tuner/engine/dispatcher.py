"""Which worker gets which job, the jobs in flight, and how the devices are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from results_db.stored_records import Stage
from tuner.engine.instructions import Build, Measure
from tuner.engine.jobs import Job, Work, build_request, measure_request, next_batch
from tuner.engine.task import Task
from tuner.engine.task_spec import Aim, TaskSpec
from tuner.engine.trial_table import Trial, TrialState
from workers import backend_kinds
from workers.job_records import Measurement, WorkerInfo

#: Tasks searched at once: at least this many, and per runner. With more, a device process would
#: have to make a task's inputs again and again.
_TASKS, _TASKS_PER_RUNNER = 4, 2
#: Seconds until a new device process is up.
_STARTING_S = 10.0
#: Tasks whose inputs and references a device process holds.
CACHED_TASKS = 4


@dataclass(slots=True)
class Dispatcher:
    """The runners and the jobs of a run."""

    workers: dict[str, Worker] = field(default_factory=dict)
    #: Jobs in flight by id.
    jobs: dict[str, Job] = field(default_factory=dict)
    #: How many of them are builds.
    building: int = 0
    #: Device seconds from dispatch to answer, preparations excluded.
    busy_s: float = 0.0
    #: Of these, the seconds in which the device processes worked; the rest is transport.
    held_s: float = 0.0
    #: Of `held_s`, the seconds spent timing.
    timing_s: float = 0.0
    #: Candidates with an answer.
    configs: int = 0
    _last_number: int = 0
    #: How many workers serve the tasks of a device, compiled only or not.
    _serving: dict[tuple[str, str, bool], int] = field(default_factory=dict)

    # -- workers -------------------------------------------------------------------------------
    def add_worker(self, info: WorkerInfo) -> None:
        """A runner is there, for the first time or again."""
        self.workers[info.worker_id] = Worker(info)
        self._serving.clear()

    def remove_worker(self, worker_id: str) -> None:
        """A runner is gone. Its job stays in flight until the pool reports the job as lost."""
        self.workers.pop(worker_id, None)
        self._serving.clear()

    @property
    def tasks_at_once(self) -> int:
        """How many tasks keep all runners busy."""
        return max(_TASKS, _TASKS_PER_RUNNER * len(self.workers))

    def serving(self, task: Task) -> int:
        """How many workers may take the task's jobs."""
        device = task.spec.device
        key = device.kind, device.fingerprint, task.spec.compile_only
        if key not in self._serving:
            self._serving[key] = _count_serving(task, self.workers.values())
        return self._serving[key]

    # -- device jobs ---------------------------------------------------------------------------
    def dispatch(self, active: Sequence[Task], now: float) -> list[Measure]:
        """Give every idle worker a job: finals before screenings, else a task to prepare."""
        for task in active:
            repeating = task.finals is not None and task.finals.repeating
            until = task.repeat_waits_until or now + _STARTING_S
            task.repeat_waits_until = until if repeating else None
        idle = [worker for worker in self.workers.values() if worker.job_id is None]
        orders = []
        offered = [task for task in active if _offers_work(task)] if idle else []
        for place, worker in enumerate(idle):
            job = self._next_job(worker, offered, idle[place:], now)
            if job is not None:
                orders.append(self._give(worker, job, now))
        return orders

    def _next_job(
        self, worker: Worker, active: Sequence[Task], idle: Sequence[Worker], now: float
    ) -> Job | None:
        preferred = self._by_preference(worker, active, now)
        for task in preferred:
            if self._better_elsewhere(worker, task, now):
                continue
            finals = task.finals
            if finals is not None and finals.ready:
                work = Work.RACE if finals.racing else Work.CONFIRMATION
                return Job(work, task, worker.worker_id)
            job = next_batch(task, worker.worker_id, partial(_count_serving, task, idle))
            if job is not None:
                return job
        return self._preparation(worker, preferred)

    def _preparation(self, worker: Worker, tasks: Sequence[Task]) -> Job | None:
        """A task that is not cached, whose first variants are being built; one at a time."""
        if worker.has_unused_prefetch:
            return None
        for task in tasks:
            building = task.stage is Stage.SEARCH and task.search.trials.count(TrialState.BUILDING)
            cached = worker.cache_rank(task) < CACHED_TASKS
            searched = task.spec.aim is Aim.SEARCH and not task.spec.compile_only
            if building and searched and not cached:
                return Job(Work.PREPARATION, task, worker.worker_id)
        return None

    def _give(self, worker: Worker, job: Job, now: float) -> Measure:
        task, job_id = job.task, self._job_id(job.task)
        request = measure_request(job, job_id)
        if job.work is Work.CONFIRMATION:
            task.confirmed_by.add(worker.worker_id)
        if job.decides and task.finals is not None:
            task.finals.in_flight = True
        for trial in job.trials:
            task.search.trials.start_measurement(trial)
        worker.take(task, job_id, now)
        if job.work is Work.PREPARATION:
            worker.prefetched = task
        self.jobs[job_id] = job
        return Measure(worker.worker_id, replace(request, calibration=worker.info.calibration))

    def _by_preference(self, worker: Worker, active: Sequence[Task], now: float) -> list[Task]:
        """The tasks that this worker can serve, the best for it first.

        Finals go before searches, then tasks whose inputs it holds, then tasks that few others
        served last: where each device keeps to its own tasks, inputs are made once. A confirmation
        that waits for a fresh process of this worker goes last.
        """
        latest = [other.cached[0] for other in self.workers.values() if other.cached]

        def rank(task: Task) -> tuple[bool, bool, int, int]:
            others = sum(task is one for one in latest)
            waits = self._waits_for_process(worker, task, now)
            return waits, task.stage is Stage.SEARCH, worker.cache_rank(task), others

        return sorted((task for task in active if worker.serves(task.spec)), key=rank)

    def _waits_for_process(self, worker: Worker, task: Task, now: float) -> bool:
        """Whether the task's confirmation is to be repeated and this worker made the first one.

        Its running process has seen the task, and a fresh one is still starting.
        """
        repeats = task.repeat_waits_until is not None and now < task.repeat_waits_until
        return repeats and worker.worker_id in task.confirmed_by

    def _better_elsewhere(self, worker: Worker, task: Task, now: float) -> bool:
        """Whether another worker, which has not confirmed the task, should repeat this."""
        return self._waits_for_process(worker, task, now) and any(
            other.serves(task.spec) and other.worker_id not in task.confirmed_by
            for other in self.workers.values()
        )

    # -- builds --------------------------------------------------------------------------------
    def order_build(self, job: Job) -> Build:
        """Have a builder do this."""
        (trial,) = job.trials
        job.task.search.trials.start_build(trial)
        job_id = self._job_id(job.task)
        self.building += 1
        self.jobs[job_id] = job
        return Build(build_request(job, job_id))

    def in_build(self, trial: Trial, work: Work) -> bool:
        """Whether a build of this kind is in flight for the trial."""
        return any(job.work is work and job.trials == (trial,) for job in self.jobs.values())

    @property
    def awaited(self) -> bool:
        """Whether something waits for a job in flight."""
        return not all(map(_is_superfluous, self.jobs.values()))

    def abandon_builds(self) -> None:
        """Forget the builds in flight, for which nothing waits. Their answers change nothing."""
        self.jobs = {key: job for key, job in self.jobs.items() if not _is_superfluous(job)}
        self.building = sum(job.builds for job in self.jobs.values())

    def forget_builds(self, trial: Trial) -> None:
        """Forget the builds of a trial in flight. Their answers change nothing."""
        for key, job in [*self.jobs.items()]:
            if job.work is Work.BUILD and job.trials == (trial,):
                del self.jobs[key]
                self.building -= 1

    # -- answers -------------------------------------------------------------------------------
    def close(self, job_id: str, now: float) -> Job | None:
        """The job is over, with or without a result.

        None where nothing follows: the id is unknown, the job was a preparation, or its trials were
        given up meanwhile.
        """
        job = self.jobs.pop(job_id, None)
        if job is None:
            return None
        if job.builds:
            self.building -= 1
        else:
            worker = self.workers.get(job.worker_id)
            if worker is not None and worker.job_id == job_id:
                self.busy_s += 0.0 if job.work is Work.PREPARATION else now - worker.since
                worker.job_id = None
        given_up = job.trials and all(trial.state is TrialState.DROPPED for trial in job.trials)
        return None if given_up or job.work is Work.PREPARATION else job

    def account(self, result: Measurement, candidates: int) -> None:
        """Note how a measurement used its device."""
        self.held_s += result.device_s
        self.timing_s += result.timing_s
        self.configs += candidates

    def _job_id(self, task: Task) -> str:
        self._last_number += 1
        return f"{task.spec.task_id}:{self._last_number}"


def _offers_work(task: Task) -> bool:
    """Whether any worker might get a job of the task now; asked once for all of them."""
    finals, trials = task.finals, task.search.trials
    open_trials = trials.count(TrialState.READY) + trials.count(TrialState.BUILDING)
    return open_trials > 0 or (finals is not None and finals.ready)


def _count_serving(task: Task, workers: Iterable[Worker]) -> int:
    return sum(worker.serves(task.spec) for worker in workers)


def _is_superfluous(job: Job) -> bool:
    """Whether a job is a build, its task is over and its trial is recorded or dropped."""
    over = job.builds and job.task.stage is Stage.DONE
    return over and all(trial.state is not TrialState.BUILDING for trial in job.trials)


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
