"""The engine: events in, instructions out, and no I/O.

So every fault can be replayed as a list of events. The idea comes from `distributed.
worker_state_machine` in dask. Each kind of state is changed in one place: a trial in `TrialTable`,
the stage of a task in `Task`, jobs and workers in `Dispatcher`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from results_db.stored_records import RunStatus, Stage
from tuner.engine import answers
from tuner.engine.build_queue import BuildQueue
from tuner.engine.dispatcher import Dispatcher
from tuner.engine.finals_time import FinalsTime
from tuner.engine.instructions import (
    Build,
    BuildersChanged,
    Drain,
    Event,
    Fault,
    Finish,
    Instruction,
    Measure,
)
from tuner.engine.jobs import Job, Work
from tuner.engine.losses import WorkerShortage
from tuner.engine.range_search import FinishedSize, RangeSearches
from tuner.engine.search import Search, winners_near
from tuner.engine.task import Task, find_group, in_turns
from tuner.engine.task_spec import TaskSpec
from workers.job_records import (
    Built,
    Failure,
    JobLost,
    Measured,
    Measurement,
    WorkerGone,
    WorkerReady,
)

#: Builds that one event may order: a strategy takes milliseconds for each, and devices wait.
_BUILDS_PER_EVENT = 2
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Engine:
    """Coordinates the tasks of one run."""

    specs: Sequence[TaskSpec]
    #: Builds that run at once at the start; `BuildersChanged` changes it.
    builders: int
    #: Tasks searched at once; None for a number that suits the runners.
    in_flight: int | None = None
    #: Sizes of ranges that an earlier part of the run has finished.
    finished_sizes: Sequence[FinishedSize] = ()
    #: In the order in which they are opened.
    tasks: list[Task] = field(init=False)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    draining: bool = False
    finished: bool = False
    _builds: BuildQueue = field(init=False)
    _ranges: RangeSearches = field(init=False)
    _shortage: WorkerShortage = field(default_factory=WorkerShortage)
    _finals_time: FinalsTime = field(default_factory=FinalsTime)

    def __post_init__(self) -> None:
        specs = in_turns(
            self.specs, lambda s: (find_group(s.kernel, s.device, s.workload, s.place), s.gain)
        )
        self.tasks = [Task(Search(spec)) for spec in specs]
        self._builds = BuildQueue(self.dispatcher, self.builders)
        self._ranges = RangeSearches(self.tasks, self.finished_sizes)

    @property
    def builds_deferred(self) -> bool:
        """Whether a Tick orders builds at once: the last event ordered as many as it may."""
        return self._builds.deferred

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event at time `now` (seconds, monotonic); return the instructions that follow.

        Work for builders and devices comes first, so that none waits for the database.
        """
        instructions = self._take(event, now)
        self._finals_time.update(self.tasks, len(self.dispatcher.workers), now)
        # A device that has answered gets its next job before the strategy is asked for more.
        limit = 0 if isinstance(event, Measured) else _BUILDS_PER_EVENT
        instructions += self._advance(now, limit)
        return sorted(instructions, key=lambda each: not isinstance(each, Measure | Build))

    def finals_left_s(self, now: float) -> float:
        """Expected seconds of all finals that are not over."""
        return self._finals_time.left_s(self.list_expected(), len(self.dispatcher.workers), now)

    def list_expected(self) -> list[Task]:
        """The tasks without sizes of ranges that will probably be left out."""
        unlikely = self._ranges.list_unlikely()
        return [task for task in self.tasks if task.spec.task_id not in unlikely]

    # -- events --------------------------------------------------------------------------------
    def _take(self, event: Event, now: float) -> list[Instruction]:
        """Change the state by the event itself."""
        match event:
            case Built() | Measured() | JobLost():
                return self._handle_answer(event, now)
            case WorkerReady():
                self.dispatcher.add_worker(event.worker)
                self._shortage.worker_came()
            case WorkerGone():
                self.dispatcher.remove_worker(event.worker_id)
                self._shortage.worker_lost(event)
            case BuildersChanged():
                self.builders = self._builds.builders = event.builders
            case Drain():
                self.draining = self._builds.draining = True
                for task in self.tasks:
                    task.search.asker.stop()
        return []

    def _handle_answer(self, event: Built | Measured | JobLost, now: float) -> list[Instruction]:
        _log_problem(self.dispatcher.jobs.get(event.job_id), event)
        job = self.dispatcher.close(event.job_id, now)
        if job is None or self._is_built_elsewhere(job, event):
            return []
        if isinstance(event, JobLost):
            return answers.handle_loss(job, event, now, draining=self.draining)
        if isinstance(event, Built):
            return [*answers.handle_build(job, event.result)] if job.builds else []
        if isinstance(event.result, Measurement):
            self.dispatcher.account(event.result, len(job.trials))
        return answers.handle_measurement(job, event)

    def _is_built_elsewhere(self, job: Job, event: Built | Measured | JobLost) -> bool:
        """Whether a late build was lost that another builder has as well; what answers first ends
        both."""
        if job.work is not Work.BUILD or not job.trials[0].again:
            return False
        if isinstance(event, JobLost):
            return self.dispatcher.in_build(job.trials[0], Work.BUILD)
        self.dispatcher.forget_builds(job.trials[0])
        return False

    # -- what follows --------------------------------------------------------------------------
    def _advance(self, now: float, builds: int) -> list[Instruction]:
        """All instructions that are possible now, with a bounded number of builds."""
        self._builds.begin(builds)
        instructions: list[Instruction] = []
        if self.finished:
            return instructions
        while True:
            # Each of these may make the others possible.
            new: list[Instruction] = self._open_tasks()
            new += self._builds.orders(self._active(), now)
            chosen = not self.draining and self._ranges.choose_bits()
            for task in self._active():
                new += self._handle_late_builds(task, now)
                new += task.settle(draining=self.draining)
            ready = [task for task in self._active() if not task.measure_faults.pausing(now)]
            new += self.dispatcher.dispatch(ready, now)
            if not new and not chosen:
                return instructions + self._check_end(now)
            instructions += new

    def _handle_late_builds(self, task: Task, now: float) -> list[Instruction]:
        """Have late builds done by another builder, whose host may be well, or give them up."""
        instructions: list[Instruction] = []
        for trial in task.list_late_builds(now):
            if trial.again:
                self.dispatcher.forget_builds(trial)
                instructions += task.give_up_build(trial, now)
            else:
                task.search.trials.build_again(trial, now)
                again = Job(Work.BUILD, task, trials=(trial,))
                instructions.append(self.dispatcher.order_build(again))
        return instructions

    def _active(self) -> list[Task]:
        return [task for task in self.tasks if task.active]

    def _open_tasks(self) -> list[Instruction]:
        """Open waiting tasks while few enough are searched."""
        room = self.in_flight or self.dispatcher.tasks_at_once
        room -= sum(task.stage is Stage.SEARCH and not task.is_held for task in self.tasks)
        waiting = [] if self.draining else [t for t in self.tasks if t.stage is Stage.WAITING]
        instructions: list[Instruction] = []
        for task in waiting:
            if room <= 0:
                break
            plan = self._ranges.plan(task)
            if isinstance(plan, str):
                instructions += task.leave_out(plan)
            elif plan is not None:
                if plan.pays is not None:
                    task.search.asker.compare_first(plan.pays)
                task.search.served = plan.served
                searches = (each.search for each in self.tasks)
                instructions += task.open(plan.starts or winners_near(task.spec, searches))
                room -= 1
        return instructions

    # -- the end -------------------------------------------------------------------------------
    def _check_end(self, now: float) -> list[Instruction]:
        """Finish when nothing is left to do, or when no worker comes for what is left."""
        if self.dispatcher.awaited:
            self._shortage.since = None
            return []
        active = self._active()
        if all(t.stage is Stage.DONE for t in self.tasks) or (self.draining and not active):
            return self._finish(_end(self.tasks, draining=self.draining))
        stuck = [task for task in active if not self.dispatcher.serving(task)]
        if not self._shortage.outlasts_patience(now, bool(stuck)):
            return []
        if self._shortage.fault is None:
            return self._finish(_without_workers(stuck, self._shortage.last_loss))
        return [each for task in stuck for each in task.give_up(self._shortage.fault)]

    def _finish(self, end: Finish) -> list[Instruction]:
        self.finished = True
        self.dispatcher.abandon_builds()
        _log.debug("run %s %s", end.status, end.message)
        return [end]


def _log_problem(job: Job | None, event: Built | Measured | JobLost) -> None:
    """Log a job that was lost, or a measurement that failed as a whole."""
    if job is None:
        return
    if isinstance(event, JobLost):
        _log.warning("%s: lost a %s: %s", job.task.spec.label, job, event.reason)
    elif isinstance(event, Measured) and isinstance(event.result, Failure):
        message = event.result.message
        _log.debug("%s: %s failed: %s", job.task.spec.label, job, message)


def _end(tasks: Iterable[Task], *, draining: bool) -> Finish:
    """How a run ends in which nothing is left to do."""
    faults = [(task.spec.label, task.fault) for task in tasks if task.fault is not None]
    if draining or not faults:
        return Finish(RunStatus.INTERRUPTED if draining else RunStatus.FINISHED)
    label, fault = faults[0]
    more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
    message = f"{label}{more} given up: {fault.reason}"
    return Finish(RunStatus.INTERRUPTED, message, Fault(message, fault.remedy))


def _without_workers(tasks: Sequence[Task], last_loss: str) -> Finish:
    """How a run ends in which no worker can serve these tasks."""
    names = ", ".join(task.spec.label for task in tasks[:3])
    lost = f"; the last lost worker was {last_loss}" if last_loss else ""
    return Finish(RunStatus.FAILED, f"no worker is left for {names}{lost}")
