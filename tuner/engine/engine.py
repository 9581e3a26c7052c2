"""The engine: events in, instructions out, state changed in one place and no I/O.

The idea is that of `distributed/worker_state_machine.py` in dask: whatever goes wrong in a run can
be replayed as a list of events in a unit test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from results_db.records import TrialRecord
from search_spaces.records import Status
from tuner.engine import jobs, trial_records
from tuner.engine.dispatcher import Dispatcher, Job, Worker
from tuner.engine.finals import Finals
from tuner.engine.instructions import (
    Build,
    Drain,
    Event,
    Fault,
    Instruction,
    Measure,
    Record,
    Select,
    SetStage,
)
from tuner.engine.losses import MAX_LOSSES, Desertion, too_often
from tuner.engine.search import Search
from tuner.engine.selection import settled_outcome
from tuner.engine.task import Task, by_turns, deserted, ending
from tuner.engine.trial import State, TaskSpec, Trial
from tuner.engine.warm_start import winners_nearby
from workers.records import (
    Artifact,
    Built,
    Failure,
    JobLost,
    Measured,
    Measurement,
    Mode,
    WorkerGone,
    WorkerReady,
)

#: Builds ordered in answer to one event: a strategy takes milliseconds for each, and devices wait.
_AT_ONCE = 2
#: One build in so many is queued ahead of the builders, so that none waits for the driver.
_AHEAD = 4


@dataclass(slots=True)
class Engine:
    """Coordinates the tasks of one run.

    builders: builds that run at once; a few more are queued so that none waits for the driver.
    in_flight: tasks searched at once, None for what suits the runners. tasks: as they are opened.
    dispatcher: runners, and what is under way. hungry: a Tick orders builds for which the last
    answer did not wait.
    """

    specs: Sequence[TaskSpec]
    builders: int
    in_flight: int | None = None
    tasks: list[Task] = field(default_factory=list)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    draining: bool = False
    finished: bool = False
    hungry: bool = False
    _turn: int = 0
    _left: int = 0
    _desertion: Desertion = field(default_factory=Desertion)

    def __post_init__(self) -> None:
        self.tasks = by_turns(Task(Search(spec)) for spec in self.specs)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done.

        Work for builders and devices comes first, so that none waits for the database. A Tick only
        tells that time has passed.
        """
        out: list[Instruction] = []
        match event:
            case Built():
                self._built(event, now, out)
            case Measured():
                self._measured(event, now, out)
            case JobLost():
                self._lost(event, now, out)
            case WorkerReady():
                self.dispatcher.workers[event.worker.worker_id] = Worker(event.worker)
                self._desertion.fault = None
            case WorkerGone():
                self.dispatcher.workers.pop(event.worker_id, None)
                self._desertion.left(event)
            case Drain():
                # No new trial; those not yet at work are given up, the rest is brought to an end.
                self.draining = True
                for task in self.tasks:
                    task.search.stop()
        # A device that has answered gets its next job before the strategy is asked for more.
        self._advance(now, out, 0 if isinstance(event, Measured) else _AT_ONCE)
        out.sort(key=lambda instruction: not isinstance(instruction, Measure | Build))
        return out

    # -- events --------------------------------------------------------------------------------
    def _built(self, event: Built, now: float, out: list[Instruction]) -> None:
        job = self.dispatcher.close(event.job_id, now)
        if job is None or not job.trials:
            return
        task, trial = job.task, job.trial
        task.builds.over()
        if job.check:
            trial.check_artifact = event.result
        elif trial.state is State.DONE:
            self._rebuilt(task, trial, event.result)
        elif isinstance(event.result, Failure):
            self._finish(
                task, trial, trial_records.of_failed_build(task.spec, trial, event.result), out
            )
        elif task.spec.compile_only and not task.spec.verify:
            self._finish(task, trial, trial_records.of_build(task.spec, trial, event.result), out)
        else:
            self._ready(task, trial, event.result, out)

    def _ready(self, task: Task, trial: Trial, artifact: Artifact, out: list[Instruction]) -> None:
        """A fresh binary is measured; one that another trial has waits for its result."""
        trial.artifact = artifact
        leader = task.search.by_binary.setdefault(artifact.binary_hash, trial)
        if leader is trial:
            task.search.move(trial, State.READY)
        elif leader.record is not None:
            twin = trial_records.of_twin(task.spec, trial, artifact, leader.record)
            self._finish(task, trial, twin, out)
        else:
            task.search.move(trial, State.WAITING)

    def _rebuilt(self, task: Task, trial: Trial, result: Artifact | Failure) -> None:
        """A finalist or incumbent whose artifact was no longer at hand was built once more."""
        if isinstance(result, Artifact):
            trial.artifact = result
        elif task.finals is not None:
            task.finals.lost(trial)
        elif task.search.incumbent is trial:
            task.search.dethrone()

    def _measured(self, event: Measured, now: float, out: list[Instruction]) -> None:
        job = self.dispatcher.close(event.job_id, now)
        if job is None:
            return
        task, result = job.task, event.result
        task.measurements.over()
        if isinstance(result, Measurement):
            self.dispatcher.account(result, len(job.trials))
            task.method = task.method or jobs.method_of(result)
        if not job.trials:
            self._judged(task, result, out)
        elif isinstance(result, Failure):
            self._failed(job, event.worker_id, result, out)
        else:
            self._answered(job, event.worker_id, result, out)

    def _failed(self, job: Job, worker_id: str, why: Failure, out: list[Instruction]) -> None:
        """A whole job failed: with one trial it is that one's, else each goes again, alone."""
        for trial in job.trials:
            if len(job.trials) == 1:
                record = trial_records.of_failed_job(job.task.spec, trial, worker_id, why)
                self._finish(job.task, trial, record, out)
            else:
                trial.alone = True
                self._again(job.task, trial, State.READY)

    def _answered(
        self, job: Job, worker_id: str, result: Measurement, out: list[Instruction]
    ) -> None:
        """Every candidate has its outcome, or was not reached and goes again."""
        screened_against = job.trial.screened_against
        beaten = screened_against is not None and isinstance(result.outcomes[-1], Failure)
        if beaten and job.task.search.incumbent is screened_against:
            job.task.search.dethrone()
        for index, trial in enumerate(job.trials):
            outcome = result.outcomes[index]
            kept = job.task.search.kept_time(trial)
            if trial_records.was_reached(job.task.spec, outcome, kept):
                record = trial_records.of_measurement(
                    job.task.spec, trial, worker_id, result, index
                )
                self._finish(job.task, trial, trial_records.with_time(record, kept), out)
            else:
                self._retry(job, trial, worker_id, "was not reached in its job", out)

    def _judged(self, task: Task, result: Measurement | Failure, out: list[Instruction]) -> None:
        finals = task.finals
        if finals is None or task.stage == "done":
            return
        if isinstance(result, Failure):
            finals.failed(result)
        elif finals.racing:
            finals.raced(result)
        else:
            selected = finals.confirmed(result)
            if selected is not None:
                out.append(Select(task.spec.task_id, *selected))
                self._close(task, out)
            elif finals.racing:
                self._stage(task, "finals", out)

    def _lost(self, event: JobLost, now: float, out: list[Instruction]) -> None:
        """The worker died, not the trial: the same again elsewhere, within reason."""
        job = self.dispatcher.close(event.job_id, now)
        if job is None:
            return
        setbacks = job.task.measurements if job.worker_id else job.task.builds
        if event.remedy:
            setbacks.met(now)
        if not job.trials and job.task.finals is not None:
            job.task.finals.worker_lost(event.reason)
        for trial in job.trials:
            trial.alone = trial.alone or len(job.trials) > 1
            self._retry(job, trial, job.worker_id, event.reason, out)
        if setbacks.hopeless and job.task.stage != "done" and not self.draining:
            self._give_up(job.task, Fault(event.reason, event.remedy), out)

    def _give_up(self, task: Task, fault: Fault, out: list[Instruction]) -> None:
        self._stage(task, "search", out, f"given up: {fault.reason}")
        task.give_up(fault)

    def _retry(
        self, job: Job, trial: Trial, worker_id: str, reason: str, out: list[Instruction]
    ) -> None:
        """Once more, unless that has been tried too often."""
        trial.attempt += 1
        hopeless = trial.attempt >= MAX_LOSSES
        failure = Failure(Status.RUNTIME, too_often(trial.attempt, reason))
        if job.check:
            trial.check_artifact = failure if hopeless else trial.check_artifact
        elif trial.state is State.DONE:
            if hopeless:
                self._rebuilt(job.task, trial, failure)
        elif hopeless:
            record = trial_records.of_failed_job(job.task.spec, trial, worker_id, failure)
            self._finish(job.task, trial, record, out)
        else:
            self._again(job.task, trial, State.READY if job.worker_id else State.ASKED)

    def _again(self, task: Task, trial: Trial, state: State) -> None:
        trial.screened_against = None
        task.search.move(trial, state)
        if self.draining:
            task.search.stop()

    def _finish(
        self, task: Task, trial: Trial, record: TrialRecord, out: list[Instruction]
    ) -> None:
        out.append(Record(task.spec.task_id, record))
        task.search.finish(trial, record)
        if task.search.by_binary.get(record.binary_hash) is not trial:
            return
        for twin in task.search.in_state(State.WAITING):
            if twin.artifact is not None and twin.artifact.binary_hash == record.binary_hash:
                copied = trial_records.of_twin(task.spec, twin, twin.artifact, record)
                out.append(Record(task.spec.task_id, copied))
                task.search.finish(twin, copied)

    # -- what follows --------------------------------------------------------------------------
    def _advance(self, now: float, out: list[Instruction], builds: int) -> None:
        """Do all that can be done now, with so many builds; each round may make more possible."""
        done = -1
        self._left, self.hungry = builds, False
        while not self.finished and len(out) != done:
            done = len(out)
            self._open_tasks(out)
            self._order_builds(now, out)
            self._settle(out)
            ready = [task for task in self._active() if not task.measurements.pausing(now)]
            out.extend(self.dispatcher.dispatch(ready, now))
        if not self.finished:
            self._check_end(now, out)

    def _active(self) -> list[Task]:
        return [t for t in self.tasks if t.stage not in ("waiting", "done")]

    def _open_tasks(self, out: list[Instruction]) -> None:
        room = self.in_flight or self.dispatcher.tasks_at_once
        room -= sum(1 for t in self.tasks if t.stage == "search")
        for task in self.tasks:
            if room <= 0 or self.draining:
                return
            if task.stage == "waiting":
                task.search.warm(winners_nearby(task.spec, [t.search for t in self.tasks]))
                self._stage(task, "search", out)
                room -= 1

    def _settle(self, out: list[Instruction]) -> None:
        """Move tasks whose search is over to the finals, and those without finals to the end."""
        for task in self._active():
            if task.stage == "search" and task.search.exhausted:
                self._search_over(task, out)
            finals = task.finals
            if finals is None or finals.in_flight:
                continue
            if finals.mode is Mode.CONFIRM and task.stage == "finals":
                self._stage(task, "confirm", out)
            if finals.mode is None or self.draining:
                self._unconfirmed(task, out)

    def _search_over(self, task: Task, out: list[Instruction]) -> None:
        settled = settled_outcome(task.search)
        if settled is not None:
            out.append(Select(task.spec.task_id, *settled))
            self._close(task, out)
            return
        task.finals = Finals(task.search)
        task.finals.open()
        self._stage(task, "finals", out)

    def _unconfirmed(self, task: Task, out: list[Instruction]) -> None:
        if self.draining:
            self._stage(task, "search", out, "interrupted")
            task.stage = "done"
            return
        assert task.finals is not None
        selection = task.finals.unconfirmed()
        if selection is not None:
            out.append(Select(task.spec.task_id, selection, ()))
        self._close(task, out)

    # -- builds --------------------------------------------------------------------------------
    def _order_builds(self, now: float, out: list[Instruction]) -> None:
        room = self.builders + max(2, self.builders // _AHEAD) - self.dispatcher.building
        tasks = [task for task in self._active() if not task.builds.pausing(now)]
        idle_rounds = 0
        while room > 0 and idle_rounds < len(tasks):
            if self._left == 0:
                self.hungry = True
                return
            task = tasks[self._turn % len(tasks)]
            self._turn += 1
            order = self._next_order(task, now, out)
            idle_rounds = idle_rounds + 1 if order is None else 0
            if order is not None:
                room -= 1
                self._left -= 1
                out.append(order)

    def _next_order(self, task: Task, now: float, out: list[Instruction]) -> Build | None:
        """A build of the task: of a trial or, near the end, of a likely winner at its odd size."""
        unchecked = (task.finals or task.search).unchecked()
        odd = next((t for t in unchecked if not self.dispatcher.in_build(t, check=True)), None)
        if odd is not None:
            return self.dispatcher.order_build(task, odd, check=True)
        trial = self._next_build(task, now, out)
        return None if trial is None else self.dispatcher.order_build(task, trial)

    def _next_build(self, task: Task, now: float, out: list[Instruction]) -> Trial | None:
        if task.finals is not None:
            missing = task.finals.missing()
            return next((t for t in missing if not self.dispatcher.in_build(t)), None)
        incumbent = jobs.incumbent_to_rebuild(task)
        if incumbent is not None and not self.dispatcher.in_build(incumbent):
            return incumbent
        asked = task.search.first(State.ASKED)
        if asked is not None:
            return asked
        devices = self.dispatcher.serving(task)
        while not self.draining and jobs.has_room(task, devices, self.builders):
            trial = task.search.next_trial(now)
            if trial is None:
                return None
            known = task.search.known_result(trial)
            if known is None:
                return trial
            self._finish(task, trial, known, out)
        return None

    # -- the end -------------------------------------------------------------------------------
    def _check_end(self, now: float, out: list[Instruction]) -> None:
        if self.dispatcher.jobs:
            self._desertion.since = None
            return
        if all(t.stage == "done" for t in self.tasks) or (self.draining and not self._active()):
            self.finished = True
            out.append(ending(self.draining, self.tasks))
            return
        stuck = [t for t in self._active() if not self.dispatcher.serving(t)]
        if not self._desertion.lasts(now, bool(stuck)):
            return
        if (fault := self._desertion.fault) is None:
            self.finished = True
            out.append(deserted(stuck))
            return
        for task in stuck:
            self._give_up(task, fault, out)

    def _stage(self, task: Task, stage: str, out: list[Instruction], note: str = "") -> None:
        task.stage = stage
        out.append(SetStage(task.spec.task_id, stage, note or None))

    def _close(self, task: Task, out: list[Instruction]) -> None:
        self._stage(task, "done", out, task.search.remark or "")
        task.close()
