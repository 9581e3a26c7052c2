"""A digest of everything in an engine's state that later decisions depend on."""

from __future__ import annotations

from typing import Any

from search_spaces.records import digest
from tuner.engine.engine import Engine
from tuner.engine.finals import Finals
from tuner.engine.jobs import Job, trials_of
from tuner.engine.task import Task
from tuner.engine.trial import Trial
from workers.job_records import Artifact, Failure


def state_digest(engine: Engine) -> str:
    """Equal for two engines in the same state: tasks, trials, finals, jobs, workers and clocks."""
    dispatcher = engine.dispatcher
    return digest(
        {
            "finished": engine.finished,
            "draining": engine.draining,
            "builders": engine.builders,
            "tasks": [_task(task) for task in engine.tasks],
            "jobs": {job_id: _job(job) for job_id, job in dispatcher.jobs.items()},
            "workers": {
                worker.worker_id: [
                    worker.job_id,
                    worker.since,
                    [task.spec.task_id for task in worker.cached],
                    None if worker.prefetched is None else worker.prefetched.spec.task_id,
                ]
                for worker in dispatcher.workers.values()
            },
            "usage": [
                dispatcher.building,
                dispatcher.busy_s,
                dispatcher.held_s,
                dispatcher.timing_s,
                dispatcher.configs,
            ],
        },
        length=64,
    )


def _task(task: Task) -> dict[str, Any]:
    search = task.search
    return {
        "task_id": task.spec.task_id,
        "stage": task.stage,
        "method": task.method,
        "fault": None if task.fault is None else task.fault.reason,
        "confirmed_by": sorted(task.confirmed_by),
        "streaks": [
            [streak.rounds, streak.resume_at] for streak in (task.build_faults, task.measure_faults)
        ],
        "stopped": search.asker.stopped,
        "device_s": search.trials.device_s,
        "incumbent": None if search.incumbent is None else search.incumbent.number,
        "ranking": [trial.number for trial in search.ranking.trials()],
        "trials": [_trial(trial) for trial in search.trials.values()],
        "finals": None if task.finals is None else _finals(task.finals),
    }


def _trial(trial: Trial) -> list[Any]:
    record = trial.record
    result = None
    if record is not None:
        ratio = None if record.log_ratio is None else record.log_ratio.value
        times = [record.median_us, ratio, record.device_s]
        result = [record.attempt_id, record.status, record.source, record.message, times]
    return [
        trial.number,
        trial.key,
        trial.strategy,
        trial.state,
        trial.attempt,
        trial.alone,
        trial.score,
        trial.asked_at,
        _digest_build(trial.artifact),
        _digest_build(trial.check_artifact),
        result,
    ]


def _digest_build(result: Artifact | Failure | None) -> str | None:
    if result is None:
        return None
    return result.binary_hash if isinstance(result, Artifact) else result.message


def _finals(finals: Finals) -> list[Any]:
    return [
        finals.mode,
        finals.in_flight,
        finals.tries,
        finals.losses,
        [trial.number for trial in finals.finalists],
        [trial.number for trial in finals.tie],
        finals.reason,
        finals.problem,
    ]


def _job(job: Job) -> list[Any]:
    numbers = [trial.number for trial in trials_of(job)]
    return [type(job).__name__, job.task.spec.task_id, numbers]
