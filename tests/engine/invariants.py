"""What must hold of an engine's state after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from results_db.stored_records import Stage
from search_spaces.records import Status, config_key
from tuner.engine import Engine
from tuner.engine.dispatcher import Dispatcher
from tuner.engine.jobs import Job, Work
from tuner.engine.task import Task
from tuner.engine.trial_table import Trial, TrialState
from workers.job_records import Mode


class InvariantError(AssertionError):
    """The engine's state contradicts itself: a defect of the engine."""


def check(engine: Engine) -> None:
    """Raise `InvariantError` with all contradictions, if there are any."""
    tasks, dispatcher = engine.tasks, engine.dispatcher
    problems = [problem for task in tasks for problem in _of_task(task)]
    problems += _of_jobs(tasks, dispatcher)
    problems += _of_workers(dispatcher)
    if engine.finished:
        problems += _of_the_end(tasks, dispatcher)
    if problems:
        raise InvariantError("; ".join(problems))


def _of_the_end(tasks: Sequence[Task], dispatcher: Dispatcher) -> Iterator[str]:
    if dispatcher.jobs:
        yield f"the run has finished with {len(dispatcher.jobs)} jobs in flight"
    for task in tasks:
        for trial in task.search.trials.values():
            if trial.key != config_key(trial.config):
                yield f"{task.spec.label}: the config of trial {trial.number} was changed"


def _of_task(task: Task) -> Iterator[str]:
    for problem in (*_of_trials(task), *_of_ranking(task), *_of_stage(task), *_of_budget(task)):
        yield f"{task.spec.label}: {problem}"


def _of_trials(task: Task) -> Iterator[str]:
    trials = task.search.trials
    counted = Counter([trial.state for trial in trials.values()])
    for state in TrialState:
        if counted[state] != trials.count(state):
            yield f"{trials.count(state)} trials counted as {state}, {counted[state]} are"
    numbers = [trial.number for trial in trials.values()]
    if len({*numbers}) != len(numbers):
        repeated = ((number, n) for number, n in Counter(numbers).items() if n > 1)
        yield from (f"{n} trials have number {number}" for number, n in repeated)
    for key, trial in trials.items():
        if key != trial.key:
            yield f"trial {trial.number} is kept under another config's key"
        if (trial.record is not None) != (trial.state is TrialState.DONE):
            without = "without" if trial.record is None else "with"
            yield f"trial {trial.number} is {trial.state}, {without} a record"
        if (
            trial.state in (TrialState.READY, TrialState.WAITING, TrialState.MEASURING)
            and not trial.artifact
        ):
            yield f"trial {trial.number} is {trial.state} without an artifact"
        if trial.state is TrialState.WAITING and not _first_is_open(task, trial):
            yield f"trial {trial.number} waits for a binary that no open trial has"


def _first_is_open(task: Task, trial: Trial) -> bool:
    binary = trial.artifact.binary_hash if trial.artifact is not None else ""
    first = task.search.trials.by_binary.get(binary)
    return first is not None and first is not trial and first.state is not TrialState.DONE


def _of_ranking(task: Task) -> Iterator[str]:
    search = task.search
    ranked = search.ranking.trials()
    scores = [(trial.score, trial.number) for trial in ranked]
    if any(score is None for score, _ in scores) or scores != sorted(scores):
        yield f"the ranking is out of order: {scores}"
    for trial in ranked:
        correct = trial.record is not None and trial.record.status is Status.CORRECT
        if search.trials.get(trial.key) is not trial or not correct:
            yield f"trial {trial.number} is ranked without a correct result"
    incumbent = search.incumbent
    if (incumbent is None) != (not ranked):
        yield f"{len(ranked)} trials are ranked, the incumbent is {incumbent}"
    elif incumbent is not None and incumbent.score != ranked[0].score:
        yield f"the incumbent, trial {incumbent.number}, is not the fastest ranked trial"


def _of_stage(task: Task) -> Iterator[str]:
    search, finals = task.search, task.finals
    if task.stage is Stage.WAITING and search.trials.open:
        yield "it has open trials and was not opened"
    if task.stage in (Stage.FINALS, Stage.CONFIRM) and (finals is None or search.trials.open):
        yield f"it is in stage {task.stage} while its search goes on"
    if finals is None:
        return
    if finals.mode is None and finals.in_flight:
        yield "its finals are over and a device measures them"
    if finals.mode is not None and not (finals.finalists and finals.tie):
        yield f"its {finals.mode} has no candidates"
    if task.stage is Stage.CONFIRM and finals.mode is Mode.RACE:
        yield "it is in stage confirm and the race is next"
    for trial in finals.finalists:
        if search.trials.get(trial.key) is not trial:
            yield f"finalist {trial.number} is no trial of the task"


def _of_budget(task: Task) -> Iterator[str]:
    limit, trials = task.spec.budget.trials, task.search.trials
    # A failed default is replaced even beyond the budget, and a resumed run may have spent more.
    defaults = sum(trial.strategy == "default" for trial in trials.values())
    replaced = max(0, defaults - 1)
    if limit is not None and len(trials) > max(limit, len(task.spec.finished)) + replaced:
        yield f"{len(trials)} trials were asked, the budget allows {limit}"
    spent_s = sum(trial.record.device_s for trial in trials.values() if trial.record is not None)
    if abs(spent_s - trials.device_s) > 1e-6 * max(1.0, spent_s):
        yield f"its trials took {spent_s} s of device time, {trials.device_s} s are counted"


def _of_jobs(tasks: Sequence[Task], dispatcher: Dispatcher) -> Iterator[str]:
    jobs = dispatcher.jobs
    builds = sum(job.builds for job in jobs.values())
    if builds != dispatcher.building:
        yield f"{builds} builds are in flight, {dispatcher.building} are counted"
    owners: dict[tuple[bool, int], str] = {}
    for job_id, job in jobs.items():
        if not any(job.task is task for task in tasks):
            yield f"job {job_id} belongs to no task of the run"
        yield from (f"job {job_id}: {problem}" for problem in _of_job(job))
        for trial in job.trials:
            place = job.work is Work.CHECK_BUILD, id(trial)
            if place in owners and not (trial.again and job.builds):
                yield f"trial {trial.number} is in the jobs {owners[place]} and {job_id}"
            owners[place] = job_id
    for task in tasks:
        working = (TrialState.BUILDING, TrialState.MEASURING)
        for trial in (t for state in working for t in task.search.trials.in_state(state)):
            if (False, id(trial)) not in owners:
                yield f"{task.spec.label}: trial {trial.number} is {trial.state} in no job"
        running = any(j.decides and j.task is task for j in jobs.values())
        if task.finals is not None and task.active and task.finals.in_flight != running:
            yield f"{task.spec.label}: finals in flight is {task.finals.in_flight}"


def _of_job(job: Job) -> Iterator[str]:
    if job.task.stage is Stage.WAITING:
        yield "its task was not opened"
    if job.searches:
        if not job.trials:
            yield "it has no trials"
        yield from (
            f"trial {trial.number} is {trial.state}"
            for trial in job.trials
            if trial.state is not TrialState.MEASURING
        )
    if job.work is Work.BUILD:
        expected = (TrialState.BUILDING, TrialState.DONE, TrialState.DROPPED)
        yield from (
            f"it builds trial {trial.number}, which is {trial.state}"
            for trial in job.trials
            if trial.state not in expected
        )


def _of_workers(dispatcher: Dispatcher) -> Iterator[str]:
    """Each worker's job is in flight and its own.

    A job whose worker was replaced stays in flight until the pool reports it as lost.
    """
    for worker_id, worker in dispatcher.workers.items():
        if worker.job_id is None:
            continue
        job = dispatcher.jobs.get(worker.job_id)
        if job is None or job.builds or job.worker_id != worker_id:
            yield f"worker {worker_id} has the job {worker.job_id}, which is {job}"
