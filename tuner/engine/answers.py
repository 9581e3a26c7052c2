"""What the answer to a job changes in its task.

Every function returns the instructions that follow.

A job that fails as a whole says nothing about a trial that shared it with others: each of these is
measured again alone. A job that was lost says nothing about any trial.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from results_db.stored_records import Stage
from search_spaces.records import Status
from tuner.engine import trial_records
from tuner.engine.instructions import Fault, Instruction, Record
from tuner.engine.jobs import Job, Work, method_of
from tuner.engine.losses import MAX_LOSSES, too_many_losses
from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.engine.trial_table import Trial, TrialState
from workers.job_records import Artifact, Failure, JobLost, Measured, Measurement

_log = logging.getLogger(__name__)


def handle_build(job: Job, result: Artifact | Failure) -> list[Record]:
    """A build has succeeded or failed."""
    task, (trial,) = job.task, job.trials
    task.build_faults.clear()
    if job.work is Work.CHECK_BUILD:
        task.search.trials.take_check_build(trial, result)
        if task.spec.aim is Aim.VERIFY and isinstance(result, Failure):
            return _fail_check(task, trial, result)
        return []
    if trial.state is TrialState.DONE:
        _handle_rebuild(task, trial, result)
        return []
    if isinstance(result, Failure):
        return task.finish(trial, trial_records.of_failed_build(task.spec, trial, result))
    if task.spec.compile_only and not task.spec.verify:
        return task.finish(trial, trial_records.of_build(task.spec, trial, result))
    # A new binary is measured next. A duplicate takes the result of the first trial with it, except
    # among given configs.
    own = task.spec.aim is not Aim.SEARCH
    first = task.search.trials.take_build(trial, result, alone=own).record
    if first is None:
        return []
    return task.finish(trial, trial_records.of_duplicate_binary(task.spec, trial, result, first))


def handle_measurement(job: Job, event: Measured) -> list[Instruction]:
    """A measurement has succeeded, or failed as a whole."""
    task, result = job.task, event.result
    task.measure_faults.clear()
    if isinstance(result, Measurement):
        task.method = task.method or method_of(result)
    if job.decides:
        return task.take_final_measurement(result)
    if job.work is Work.COMPARISON:
        return [*_take_comparison(job, event.worker_id, result)]
    if not job.searches:
        return []
    if isinstance(result, Failure):
        return [*_failed_together(job, event.worker_id, result)]
    return [*_trials_measured(job, event.worker_id, result)]


def handle_loss(job: Job, event: JobLost, now: float, *, draining: bool) -> list[Instruction]:
    """A job was lost with its worker, or to a fault of the machine: it is tried again elsewhere."""
    task, trials = job.task, job.trials
    faults = task.build_faults if job.builds else task.measure_faults
    if event.lasting:
        faults.meet_lasting()
    elif event.remedy:
        # A trial is suspect only where the machine has done others.
        suspect = len(trials) == 1 and task.search.trials.done > 0
        faults.record_fault(now, trials[0].number if suspect else None)
    if job.decides and task.finals is not None:
        task.finals.job_lost(event.reason)
    instructions: list[Instruction] = []
    for trial in trials:
        if len(trials) > 1 and job.work is not Work.COMPARISON:
            task.search.trials.isolate(trial)
        instructions += _retry(job, trial, event.reason)
    if faults.hopeless and task.stage is not Stage.DONE and not draining:
        instructions += task.give_up(Fault(event.reason, event.remedy))
    return instructions


# -- builds ----------------------------------------------------------------------------------------
def _handle_rebuild(task: Task, trial: Trial, result: Artifact | Failure) -> None:
    """Handle the rebuilt artifact of a finalist or of the incumbent."""
    if isinstance(result, Artifact):
        task.search.trials.take_build(trial, result)
        return
    _log.warning(
        "%s: trial %d could not be built again: %s", task.spec.label, trial.number, result.message
    )
    if task.finals is not None:
        task.finals.build_failed(trial, result)
    elif task.search.incumbent is trial:
        task.search.drop_incumbent()


def _fail_check(task: Task, trial: Trial, failure: Failure) -> list[Record]:
    """A config that is to be verified cannot be built at the check size."""
    size = task.spec.check_size
    failure = replace(failure, message=f"{failure.message} (at {size.key if size else ''})")
    return task.finish(trial, trial_records.of_failed_build(task.spec, trial, failure))


# -- measurements ----------------------------------------------------------------------------------
def _trials_measured(job: Job, worker_id: str, result: Measurement) -> list[Record]:
    """Every candidate has its outcome, or was not reached and is measured again."""
    search, spec = job.task.search, job.task.spec
    incumbent = job.incumbent
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
        records += job.task.finish(trial, trial_records.with_time(record, kept))
    return records


def _take_comparison(
    job: Job, worker_id: str, result: Measurement | Failure
) -> Iterator[Instruction]:
    """Given configs were timed side by side, or the pass failed as a whole: each has its result."""
    task, spec = job.task, job.task.spec
    for index, trial in enumerate(job.trials):
        if isinstance(result, Failure):
            record = trial_records.of_failed_job(spec, trial, worker_id, result)
        else:
            record = trial_records.of_comparison(spec, job.trials, worker_id, result, index)
        yield from task.finish(trial, record)
    if isinstance(result, Measurement):
        yield task.select_first(job.trials, result)


def _failed_together(job: Job, worker_id: str, failure: Failure) -> list[Record]:
    """A whole job failed. A single trial is at fault; of several, each is measured again alone."""
    if len(job.trials) == 1:
        (trial,) = job.trials
        record = trial_records.of_failed_job(job.task.spec, trial, worker_id, failure)
        return job.task.finish(trial, record)
    for trial in job.trials:
        job.task.search.trials.isolate(trial)
        job.task.search.trials.requeue(trial, TrialState.READY)
    return []


# -- lost jobs -------------------------------------------------------------------------------------
def _retry(job: Job, trial: Trial, reason: str) -> list[Record]:
    """Build or measure a trial again, unless that was tried too often."""
    task, trials = job.task, job.task.search.trials
    losses = trials.count_loss(trial)
    hopeless = losses >= MAX_LOSSES
    failure = Failure(Status.RUNTIME, too_many_losses(losses, reason))
    if job.work is Work.CHECK_BUILD:
        if hopeless:
            trials.take_check_build(trial, failure)
    elif trial.state is TrialState.DONE:
        if hopeless:
            _handle_rebuild(task, trial, failure)
    elif hopeless:
        record = trial_records.of_failed_job(task.spec, trial, job.worker_id, failure)
        return task.finish(trial, record)
    else:
        trials.requeue(trial, TrialState.ASKED if job.builds else TrialState.READY)
    return []
