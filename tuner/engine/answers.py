"""What the answer to a job changes in its task.

Every function returns the instructions that follow.

A job that fails as a whole says nothing about a trial that shared it with others: each of these is
measured again alone. A job that was lost says nothing about any trial.
"""

from __future__ import annotations

import logging

from results_db.stored_records import Stage, TrialRecord
from search_spaces.records import Status
from tuner.engine import trial_records
from tuner.engine.instructions import Fault, Instruction, Record, Select
from tuner.engine.jobs import (
    AnyBuild,
    CheckSizeBuild,
    FinalMeasurement,
    Job,
    Screening,
    TrialMeasurement,
    trials_of,
)
from tuner.engine.losses import MAX_LOSSES, too_many_losses
from tuner.engine.requests import method_of
from tuner.engine.task import Task
from tuner.engine.trial import Trial, TrialState
from workers.job_records import Artifact, Failure, JobLost, Measured, Measurement

_log = logging.getLogger(__name__)


def finish(task: Task, trial: Trial, record: TrialRecord) -> list[Record]:
    """Record a trial, and every trial that waits for the result of the same binary."""
    _log.debug("%s: trial %d: %s", task.spec.label, trial.number, record.status)
    task.search.finish(trial, record)
    records = [Record(task.spec.task_id, record)]
    if task.search.by_binary.get(record.binary_hash) is not trial:
        return records
    for duplicate in task.search.trials.in_state(TrialState.WAITING):
        artifact = duplicate.artifact
        if artifact is not None and artifact.binary_hash == record.binary_hash:
            copied = trial_records.of_duplicate_binary(task.spec, duplicate, artifact, record)
            task.search.finish(duplicate, copied)
            records.append(Record(task.spec.task_id, copied))
    return records


def handle_build(job: AnyBuild, result: Artifact | Failure) -> list[Record]:
    """A build has succeeded or failed."""
    task, trial = job.task, job.trial
    task.build_faults.clear()
    if isinstance(job, CheckSizeBuild):
        trial.check_artifact = result
        return []
    if trial.state is TrialState.DONE:
        _handle_rebuild(task, trial, result)
        return []
    if isinstance(result, Failure):
        return finish(task, trial, trial_records.of_failed_build(task.spec, trial, result))
    if task.spec.compile_only and not task.spec.verify:
        return finish(task, trial, trial_records.of_build(task.spec, trial, result))
    return _ready(task, trial, result)


def handle_measurement(job: Job, event: Measured) -> list[Instruction]:
    """A measurement has succeeded, or failed as a whole."""
    task, result = job.task, event.result
    task.measure_faults.clear()
    if isinstance(result, Measurement):
        task.method = task.method or method_of(result)
    if isinstance(job, FinalMeasurement):
        return _final_measured(task, result)
    if not isinstance(job, TrialMeasurement):
        return []
    if isinstance(result, Failure):
        return [*_failed_together(job, event.worker_id, result)]
    return [*_trials_measured(job, event.worker_id, result)]


def handle_loss(job: Job, event: JobLost, now: float, *, draining: bool) -> list[Instruction]:
    """A job was lost with its worker, or to a fault of the machine: it is tried again elsewhere."""
    task, trials = job.task, trials_of(job)
    faults = task.build_faults if isinstance(job, AnyBuild) else task.measure_faults
    if event.lasting:
        faults.meet_lasting()
    elif event.remedy:
        # A trial is suspect only where the machine has done others.
        suspect = len(trials) == 1 and task.search.trials.count(TrialState.DONE) > 0
        faults.record_fault(now, trials[0].number if suspect else None)
    if isinstance(job, FinalMeasurement) and task.finals is not None:
        task.finals.job_lost(event.reason)
    instructions: list[Instruction] = []
    for trial in trials:
        trial.alone = trial.alone or len(trials) > 1
        instructions += _retry(job, trial, event.reason)
    if faults.hopeless and task.stage is not Stage.DONE and not draining:
        instructions += task.give_up(Fault(event.reason, event.remedy))
    return instructions


# -- builds ----------------------------------------------------------------------------------------
def _ready(task: Task, trial: Trial, artifact: Artifact) -> list[Record]:
    """A new binary is measured next. A duplicate takes the result of the first trial with it."""
    trial.artifact = artifact
    first = task.search.by_binary.setdefault(artifact.binary_hash, trial)
    if first is trial:
        task.search.trials.move(trial, TrialState.READY)
    elif first.record is None:
        task.search.trials.move(trial, TrialState.WAITING)
    else:
        record = trial_records.of_duplicate_binary(task.spec, trial, artifact, first.record)
        return finish(task, trial, record)
    return []


def _handle_rebuild(task: Task, trial: Trial, result: Artifact | Failure) -> None:
    """Handle the rebuilt artifact of a finalist or of the incumbent."""
    if isinstance(result, Artifact):
        trial.artifact = result
        return
    _log.warning(
        "%s: trial %d could not be built again: %s", task.spec.label, trial.number, result.message
    )
    if task.finals is not None:
        task.finals.build_failed(trial, result)
    elif task.search.incumbent is trial:
        task.search.drop_incumbent()


# -- measurements ----------------------------------------------------------------------------------
def _trials_measured(job: TrialMeasurement, worker_id: str, result: Measurement) -> list[Record]:
    """Every candidate has its outcome, or was not reached and is measured again."""
    search, spec = job.task.search, job.task.spec
    incumbent = job.incumbent if isinstance(job, Screening) else None
    if incumbent is not None and isinstance(result.outcomes[-1], Failure):
        _log.debug("%s: the incumbent failed: %s", spec.label, result.outcomes[-1].message)
        if search.incumbent is incumbent:
            search.drop_incumbent()
    records: list[Record] = []
    for index, trial in enumerate(job.trials):
        kept = search.kept_time(trial)
        if not trial_records.was_reached(spec, result.outcomes[index], kept):
            records += _retry(job, trial, "was not reached in its job")
            continue
        record = trial_records.of_measurement(
            spec, trial, worker_id, result, index=index, incumbent=incumbent
        )
        records += finish(job.task, trial, trial_records.with_time(record, kept))
    return records


def _failed_together(job: TrialMeasurement, worker_id: str, failure: Failure) -> list[Record]:
    """A whole job failed. A single trial is at fault; of several, each is measured again alone."""
    if len(job.trials) == 1:
        (trial,) = job.trials
        record = trial_records.of_failed_job(job.task.spec, trial, worker_id, failure)
        return finish(job.task, trial, record)
    for trial in job.trials:
        trial.alone = True
        job.task.search.requeue(trial, TrialState.READY)
    return []


def _final_measured(task: Task, result: Measurement | Failure) -> list[Instruction]:
    finals = task.finals
    if finals is None or task.stage is Stage.DONE:
        return []
    if isinstance(result, Failure):
        _log.warning("%s: the %s failed: %s", task.spec.label, finals.mode, result.message)
        finals.job_failed(result)
    elif finals.racing:
        finals.handle_race(result)
    elif (outcome := finals.handle_confirmation(result)) is not None:
        return [Select(task.spec.task_id, *outcome), *task.close()]
    elif finals.racing:
        return [*task.enter(Stage.FINALS)]
    return []


# -- lost jobs -------------------------------------------------------------------------------------
def _retry(job: Job, trial: Trial, reason: str) -> list[Record]:
    """Build or measure a trial again, unless that was tried too often."""
    task, trial.attempt = job.task, trial.attempt + 1
    hopeless = trial.attempt >= MAX_LOSSES
    failure = Failure(Status.RUNTIME, too_many_losses(trial.attempt, reason))
    if isinstance(job, CheckSizeBuild):
        trial.check_artifact = failure if hopeless else trial.check_artifact
    elif trial.state is TrialState.DONE:
        if hopeless:
            _handle_rebuild(task, trial, failure)
    elif hopeless:
        worker_id = "" if isinstance(job, AnyBuild) else job.worker_id
        record = trial_records.of_failed_job(task.spec, trial, worker_id, failure)
        return finish(task, trial, record)
    else:
        task.search.requeue(
            trial, TrialState.ASKED if isinstance(job, AnyBuild) else TrialState.READY
        )
    return []
