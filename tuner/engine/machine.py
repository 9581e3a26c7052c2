"""The engine: events in, instructions out, state changed in one place and no I/O.

The idea is that of `distributed/worker_state_machine.py` in dask: whatever goes wrong in a run can
be replayed as a list of events in a unit test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from results_db.records import TrialRecord
from search_spaces.records import Status
from tuner.engine import jobs, results
from tuner.engine.finals import Finals, settled_outcome
from tuner.engine.instructions import (
    Build,
    Drain,
    Event,
    Finish,
    Instruction,
    Measure,
    Record,
    Select,
    SetStage,
    Tick,
)
from tuner.engine.jobs import Task, fits
from tuner.engine.task import Search, State, TaskSpec, Trial
from workers.records import (
    Artifact,
    Built,
    Failure,
    JobLost,
    Measured,
    Measurement,
    Mode,
    WorkerGone,
    WorkerInfo,
    WorkerReady,
)

#: A job whose worker died is given to another one this often before the trial is given up.
MAX_LOSSES = 8
#: Seconds without any worker for a task before it is given up.
PATIENCE_S = 120.0


@dataclass(slots=True)
class Worker:
    """A runner: idle when it has no job."""

    info: WorkerInfo
    job_id: str | None = None
    task: Task | None = None
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a job id stands for; trial is None for finals and confirmations."""

    task: Task
    trial: Trial | None
    worker_id: str = ""


@dataclass(slots=True)
class Engine:
    """Coordinates the tasks of one run.

    builders: builds that run at once; a few more are queued so that none waits for the driver.
    in_flight: tasks searched at once. busy_s: device time from dispatch to answer, summed.
    """

    specs: Sequence[TaskSpec]
    builders: int
    in_flight: int = 4
    tasks: list[Task] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    building: int = 0
    busy_s: float = 0.0
    draining: bool = False
    finished: bool = False
    _turn: int = 0
    _serial: int = 0
    _deserted_at: float | None = None

    def __post_init__(self) -> None:
        self.tasks = [Task(Search(spec)) for spec in self.specs]

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        out: list[Instruction] = []
        match event:
            case Built():
                self._built(event, out)
            case Measured():
                self._measured(event, now, out)
            case JobLost():
                self._lost(event, now, out)
            case WorkerReady():
                self.workers[event.worker.worker_id] = Worker(event.worker)
            case WorkerGone():
                self.workers.pop(event.worker_id, None)
            case Drain():
                self._drain()
            case Tick():
                pass
        self._advance(now, out)
        return out

    # -- events --------------------------------------------------------------------------------
    def _built(self, event: Built, out: list[Instruction]) -> None:
        job = self.jobs.pop(event.job_id, None)
        if job is None or job.trial is None:
            return
        self.building -= 1
        task, trial = job.task, job.trial
        if trial.state is State.DONE:
            self._rebuilt(task, trial, event.result)
        elif isinstance(event.result, Failure):
            self._finish(task, trial, results.of_failed_build(task.spec, trial, event.result), out)
        elif task.spec.compile_only and not task.spec.verify:
            self._finish(task, trial, results.of_build(task.spec, trial, event.result), out)
        else:
            self._ready(task, trial, event.result, out)

    def _ready(self, task: Task, trial: Trial, artifact: Artifact, out: list[Instruction]) -> None:
        """A fresh binary is measured; one that another trial has waits for its result."""
        trial.artifact = artifact
        leader = task.search.by_binary.setdefault(artifact.binary_hash, trial)
        if leader is trial:
            task.search.move(trial, State.READY)
        elif leader.record is not None:
            twin = results.of_twin(task.spec, trial, artifact, leader.record)
            self._finish(task, trial, twin, out)
        else:
            task.search.move(trial, State.WAITING)

    def _rebuilt(self, task: Task, trial: Trial, result: Artifact | Failure) -> None:
        """A finalist or champion whose artifact was no longer at hand was built once more."""
        if isinstance(result, Artifact):
            trial.artifact = result
        elif task.finals is not None:
            task.finals.lost(trial)
        elif task.search.champion is trial:
            task.search.dethrone()

    def _measured(self, event: Measured, now: float, out: list[Instruction]) -> None:
        self._free(event.job_id, event.worker_id, now)
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return
        task, trial = job.task, job.trial
        if trial is None:
            self._judged(task, event.result, out)
        elif isinstance(event.result, Failure):
            record = results.of_failed_job(task.spec, trial, event.worker_id, event.result)
            self._finish(task, trial, record, out)
        else:
            record = results.of_measurement(task.spec, trial, event.worker_id, event.result)
            self._finish(task, trial, record, out)

    def _judged(self, task: Task, result: Measurement | Failure, out: list[Instruction]) -> None:
        finals = task.finals
        if finals is None:
            return
        if isinstance(result, Failure):
            finals.failed(result)
        elif finals.mode is Mode.RACE:
            finals.raced(result)
        else:
            selected = finals.confirmed(result)
            if selected is not None:
                out.append(Select(task.spec.task_id, *selected))
                self._close(task, out)

    def _lost(self, event: JobLost, now: float, out: list[Instruction]) -> None:
        """The worker died, not the trial: the same again elsewhere, within reason."""
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return
        if job.worker_id:
            self._free(event.job_id, job.worker_id, now)
        else:
            self.building -= 1
        if job.trial is None:
            if job.task.finals is not None:
                job.task.finals.worker_lost(event.reason)
            return
        trial = job.trial
        trial.attempt += 1
        hopeless = trial.attempt >= MAX_LOSSES
        reason = f"lost {trial.attempt} workers in a row; the last: {event.reason}"
        failure = Failure(Status.RUNTIME, reason)
        if trial.state is State.DONE:
            if hopeless:
                self._rebuilt(job.task, trial, failure)
        elif hopeless:
            record = results.of_failed_job(job.task.spec, trial, job.worker_id, failure)
            self._finish(job.task, trial, record, out)
        else:
            trial.rival = None
            job.task.search.move(trial, State.READY if job.worker_id else State.ASKED)
            if self.draining:
                job.task.search.stop()

    def _finish(
        self, task: Task, trial: Trial, record: TrialRecord, out: list[Instruction]
    ) -> None:
        out.append(Record(task.spec.task_id, record))
        task.search.finish(trial, record)
        if task.search.by_binary.get(record.binary_hash) is not trial:
            return
        for twin in task.search.in_state(State.WAITING):
            if twin.artifact is not None and twin.artifact.binary_hash == record.binary_hash:
                copied = results.of_twin(task.spec, twin, twin.artifact, record)
                out.append(Record(task.spec.task_id, copied))
                task.search.finish(twin, copied)

    def _drain(self) -> None:
        """No new trial; those not yet at work are given up, the rest is brought to an end."""
        self.draining = True
        for task in self.tasks:
            task.search.stop()

    def _free(self, job_id: str, worker_id: str, now: float) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None and worker.job_id == job_id:
            self.busy_s += now - worker.since
            worker.job_id = None

    # -- what follows --------------------------------------------------------------------------
    def _advance(self, now: float, out: list[Instruction]) -> None:
        """Do all that can be done now; each round may make more possible."""
        done = -1
        while not self.finished and len(out) != done:
            done = len(out)
            self._open_tasks(out)
            self._order_builds(now, out)
            self._settle(out)
            self._dispatch(now, out)
        if not self.finished:
            self._check_end(now, out)

    def _active(self) -> list[Task]:
        return [t for t in self.tasks if t.stage not in ("waiting", "done")]

    def _open_tasks(self, out: list[Instruction]) -> None:
        searching = sum(1 for t in self.tasks if t.stage == "search")
        for task in self.tasks:
            if searching >= self.in_flight or self.draining:
                return
            if task.stage == "waiting":
                self._stage(task, "search", out)
                searching += 1

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

    def _dispatch(self, now: float, out: list[Instruction]) -> None:
        for worker in self.workers.values():
            if worker.job_id is not None:
                continue
            for task in self._preference(worker):
                job_id = self._job_id(task)
                measure = jobs.final(task, job_id)
                trial = None if measure else jobs.next_duel(task)
                if trial is not None:
                    measure = jobs.duel(task, trial, job_id)
                if measure is None:
                    continue
                worker.job_id, worker.task, worker.since = job_id, task, now
                self.jobs[job_id] = Job(task, trial, worker.info.worker_id)
                out.append(Measure(worker.info.worker_id, measure))
                break

    def _preference(self, worker: Worker) -> list[Task]:
        """Tasks this worker can serve: its last one first, for its inputs are still there."""
        fitting = [t for t in self._active() if fits(worker.info, t.spec)]
        return sorted(fitting, key=lambda t: (t.stage == "search", t is not worker.task))

    # -- builds --------------------------------------------------------------------------------
    def _order_builds(self, now: float, out: list[Instruction]) -> None:
        room = self.builders + 1 - self.building
        tasks = self._active()
        if not tasks:
            return
        idle_rounds = 0
        while room > 0 and idle_rounds < len(tasks):
            task = tasks[self._turn % len(tasks)]
            self._turn += 1
            trial = self._next_build(task, now, out)
            if trial is None:
                idle_rounds += 1
                continue
            idle_rounds = 0
            room -= 1
            self._order_build(task, trial, out)

    def _next_build(self, task: Task, now: float, out: list[Instruction]) -> Trial | None:
        if task.finals is not None:
            return next((t for t in task.finals.missing() if not self._in_build(t)), None)
        champion = jobs.champion_to_rebuild(task)
        if champion is not None and not self._in_build(champion):
            return champion
        asked = task.search.first(State.ASKED)
        if asked is not None:
            return asked
        devices = sum(fits(worker.info, task.spec) for worker in self.workers.values())
        while not self.draining and jobs.has_room(task, devices, self.builders):
            trial = task.search.next_trial(now)
            if trial is None:
                return None
            known = task.search.known_result(trial)
            if known is None:
                return trial
            self._finish(task, trial, known, out)
        return None

    def _in_build(self, trial: Trial) -> bool:
        return any(job.trial is trial and not job.worker_id for job in self.jobs.values())

    def _order_build(self, task: Task, trial: Trial, out: list[Instruction]) -> None:
        if trial.state is State.ASKED:
            task.search.move(trial, State.BUILDING)
        job = jobs.build(task, trial, self._job_id(task))
        self.building += 1
        self.jobs[job.job_id] = Job(task, trial)
        out.append(Build(job))

    # -- the end -------------------------------------------------------------------------------
    def _check_end(self, now: float, out: list[Instruction]) -> None:
        if all(t.stage == "done" for t in self.tasks) or (self.draining and not self._active()):
            if not self.jobs:
                self.finished = True
                out.append(Finish("interrupted" if self.draining else "finished"))
            return
        stuck = [t for t in self._active() if not self._served(t)]
        if not stuck or self.jobs:
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = now
        elif now - self._deserted_at > PATIENCE_S:
            self.finished = True
            names = ", ".join(t.spec.label for t in stuck[:3])
            out.append(Finish("failed", f"no worker is left for {names}"))

    def _served(self, task: Task) -> bool:
        return any(fits(w.info, task.spec) for w in self.workers.values())

    def _stage(
        self, task: Task, stage: str, out: list[Instruction], note: str | None = None
    ) -> None:
        task.stage = stage
        out.append(SetStage(task.spec.task_id, stage, note))

    def _close(self, task: Task, out: list[Instruction]) -> None:
        self._stage(task, "done", out)
        for trial in task.search.trials.values():
            trial.artifact = None

    def _job_id(self, task: Task) -> str:
        self._serial += 1
        return f"{task.spec.task_id}:{self._serial}"
