"""Who works on what: runners, jobs in flight, and how well the devices are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tuner.engine import jobs
from tuner.engine.instructions import Build, Measure
from tuner.engine.task import Task
from tuner.engine.trial import State, Trial
from workers.records import MeasureJob, Measurement, Mode, WorkerInfo

#: Tasks whose inputs and references a device process holds.
_HELD = 4
#: Tasks searched at once: at least, and per runner. More would have their inputs made more often.
_TASKS, _TASKS_PER_RUNNER = 4, 2
#: A new device process is up after some seconds.
_STARTING_S = 10.0


@dataclass(slots=True)
class Worker:
    """A runner: idle when it has no job. tasks: those it served last, the latest first. ahead: a
    task that it has prepared and not served yet."""

    info: WorkerInfo
    job_id: str | None = None
    tasks: tuple[Task, ...] = ()
    since: float = 0.0
    ahead: Task | None = None

    def serve(self, task: Task, job_id: str, now: float) -> None:
        """Take a job of the task."""
        others = (other for other in self.tasks if other is not task)
        self.tasks = (task, *others)[:_HELD]
        self.job_id, self.since = job_id, now
        self.ahead = None if task is self.ahead else self.ahead

    def far(self, task: Task) -> int:
        """How long ago it served the task: 0 is the last one, more than all others never."""
        served = (place for place, other in enumerate(self.tasks) if other is task)
        return next(served, _HELD)


@dataclass(frozen=True, slots=True)
class Job:
    """What a job id stands for: a build, with its one trial, or a measurement.

    trials: the candidates of a screening in order; none for finals and confirmations. check: the
    build is of the trial's config at an odd size. ahead: nobody is measured, the task is only
    prepared.
    """

    task: Task
    trials: tuple[Trial, ...] = ()
    worker_id: str = ""
    check: bool = False
    ahead: bool = False

    @property
    def trial(self) -> Trial:
        """The one trial of a build."""
        return self.trials[0]


@dataclass(slots=True)
class Dispatcher:
    """The runners and jobs of a run.

    busy_s: device time from dispatch to answer, preparations apart; held_s: of these, what the
    device processes worked. Their ratio is the busy share while there was something to measure; the
    rest is transport.
    timing_s: of held_s, what was spent timing. configs: candidates answered for.
    """

    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    building: int = 0
    busy_s: float = 0.0
    held_s: float = 0.0
    timing_s: float = 0.0
    configs: int = 0
    _serial: int = 0

    @property
    def tasks_at_once(self) -> int:
        """How many tasks keep all runners busy."""
        return max(_TASKS, _TASKS_PER_RUNNER * len(self.workers))

    def job_id(self, task: Task) -> str:
        """A new number, with its task's."""
        self._serial += 1
        return f"{task.spec.task_id}:{self._serial}"

    def serving(self, task: Task) -> int:
        """How many workers may take the task's jobs."""
        return sum(jobs.fits(worker.info, task.spec) for worker in self.workers.values())

    def dispatch(self, active: Sequence[Task], now: float) -> list[Measure]:
        """Give every idle worker what the tasks under way have for it: finals before screenings,
        and a task to prepare while its first variants are being built."""
        for task in active:
            repeating = task.finals is not None and task.finals.repeating
            task.repeats_at = (task.repeats_at or now + _STARTING_S) if repeating else None
        orders = []
        idle = [worker for worker in self.workers.values() if worker.job_id is None]
        for place, worker in enumerate(idle):
            preferred = self._preference(worker, active, now)
            for task in preferred:
                if not jobs.offered(task) or self._better_elsewhere(worker, task, now):
                    continue
                fitting = sum(jobs.fits(other.info, task.spec) for other in idle[place:])
                order = self._assign(worker, task, fitting, now)
                if order is not None:
                    orders.append(order)
                    break
            else:
                orders += self._prepare(worker, preferred, now)
        return orders

    def _assign(self, worker: Worker, task: Task, fitting: int, now: float) -> Measure | None:
        job_id = self.job_id(task)
        measure = jobs.final(task, job_id)
        trials: tuple[Trial, ...] = ()
        if measure is None:
            trials = tuple(jobs.next_screening(task, fitting))
            measure = jobs.screening(task, trials, job_id) if trials else None
        if measure is None:
            return None
        if measure.mode is Mode.CONFIRM:
            task.confirmed_by.add(worker.info.worker_id)
        return self._give(worker, measure, Job(task, trials, worker.info.worker_id), now)

    def _prepare(self, worker: Worker, tasks: Sequence[Task], now: float) -> list[Measure]:
        """Have a worker make inputs and references of a task it does not hold, one at a time."""
        if worker.ahead is not None and worker.ahead.stage == "search":
            return []
        for task in tasks:
            building = task.stage == "search" and task.search.count(State.BUILDING)
            if building and not task.spec.compile_only and worker.far(task) == _HELD:
                measure = jobs.preparation(task, self.job_id(task))
                job = Job(task, (), worker.info.worker_id, ahead=True)
                order = self._give(worker, measure, job, now)
                worker.ahead = task
                return [order]
        return []

    def _give(self, worker: Worker, measure: MeasureJob, job: Job, now: float) -> Measure:
        worker.serve(job.task, measure.job_id, now)
        self.jobs[measure.job_id] = job
        told = replace(measure, calibration=worker.info.calibration)
        return Measure(worker.info.worker_id, told)

    def _preference(self, worker: Worker, active: Sequence[Task], now: float) -> list[Task]:
        """Tasks this worker can serve: those first whose inputs it holds, then those of nobody.

        Where each device keeps to its own tasks, inputs are made once and incumbents stay loaded.
        A confirmation to be repeated where it was made goes after all else: its process starts.
        """
        latest = [other.tasks[0] for other in self.workers.values() if other.tasks]

        def rank(task: Task) -> tuple[bool, bool, int, int]:
            others = sum(task is one for one in latest)
            starting = self._starting(worker, task, now)
            return starting, task.stage == "search", worker.far(task), others

        return sorted((task for task in active if jobs.fits(worker.info, task.spec)), key=rank)

    def _starting(self, worker: Worker, task: Task, now: float) -> bool:
        """Whether the task's next confirmation needs a process that this worker is just starting:
        it made the first one, and its others have seen the task."""
        repeats = task.repeats_at is not None and now < task.repeats_at
        return repeats and worker.info.worker_id in task.confirmed_by

    def _better_elsewhere(self, worker: Worker, task: Task, now: float) -> bool:
        """Whether the task's repeated confirmation had better wait for a worker without history."""
        return self._starting(worker, task, now) and any(
            jobs.fits(other.info, task.spec) and other.info.worker_id not in task.confirmed_by
            for other in self.workers.values()
        )

    def order_build(self, task: Task, trial: Trial, *, check: bool = False) -> Build:
        """Have a trial built, or its config at the task's odd size."""
        if trial.state is State.ASKED:
            task.search.move(trial, State.BUILDING)
        workload = task.spec.check_size if check else None
        job = jobs.build(task, trial, self.job_id(task), workload)
        self.building += 1
        self.jobs[job.job_id] = Job(task, (trial,), check=check)
        return Build(job)

    def close(self, job_id: str, now: float) -> Job | None:
        """The job is over, one way or another; None where nothing follows: it is not
        known, it was a preparation, or its trials were given up."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return None
        worker = self.workers.get(job.worker_id)
        if not job.worker_id:
            self.building -= 1
        elif worker is not None and worker.job_id == job_id:
            self.busy_s += 0.0 if job.ahead else now - worker.since
            worker.job_id = None
        given_up = job.trials and all(trial.state is State.DROPPED for trial in job.trials)
        return None if given_up or job.ahead else job

    def account(self, result: Measurement, candidates: int) -> None:
        """Note how a measurement used its device."""
        self.held_s += result.device_s
        self.timing_s += result.timing_s
        self.configs += candidates

    def in_build(self, trial: Trial, *, check: bool = False) -> bool:
        """Whether this build of the trial is under way."""
        return any(
            not job.worker_id and job.check == check and job.trial is trial
            for job in self.jobs.values()
            if job.trials
        )
