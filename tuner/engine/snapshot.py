"""The progress of a running engine, as users see it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from results_db.records import SelectionRecord
from results_db.shipped import shipped
from tuner.engine.engine import Engine
from tuner.engine.stage import Stage
from tuner.engine.task import Task
from tuner.progress import Progress, TaskProgress


def progress(
    engine: Engine,
    *,
    elapsed_s: float,
    offered_s: float,
    fresh: int,
    chosen: Mapping[int, SelectionRecord],
) -> Progress:
    """The progress of all tasks.

    elapsed_s: since the run began. offered_s: device seconds of all workers, used or not. fresh:
    trials that this process finished; the rate and the time left follow from them. chosen:
    outcomes of tasks that are shown as done for the first time.
    """
    done = sum(task.search.done for task in engine.tasks)
    total = _total(engine)
    rate = fresh / elapsed_s if elapsed_s > 0 else 0.0
    left = None if total is None or rate <= 0 else max(0.0, (total - done) / rate)
    shown = [
        task
        for task in engine.tasks
        if task.stage not in (Stage.WAITING, Stage.DONE)
        or (task.stage is Stage.DONE and task.spec.task_id in chosen)
    ]
    return Progress(
        done=done,
        total=total,
        trials_per_s=rate,
        busy_share=min(1.0, engine.dispatcher.busy_s / offered_s) if offered_s > 0 else 0.0,
        elapsed_s=elapsed_s,
        left_s=left,
        building=engine.dispatcher.building,
        measuring=sum(worker.job_id is not None for worker in engine.dispatcher.workers.values()),
        tasks_done=sum(task.stage is Stage.DONE for task in engine.tasks),
        tasks_total=len(engine.tasks),
        tasks=tuple(_task(task, chosen.get(task.spec.task_id)) for task in shown),
    )


def _total(engine: Engine) -> int | None:
    """The planned trials; None while a search without a limit of trials is open."""
    total = 0
    for task in engine.tasks:
        if task.search.stopped:
            total += len(task.search.trials)
        elif task.spec.budget.trials is None:
            return None
        else:
            total += task.spec.budget.trials
    return total


def _task(task: Task, chosen: SelectionRecord | None) -> TaskProgress:
    best = task.search.incumbent
    ships = None if chosen is None or task.stage is not Stage.DONE else shipped(chosen)
    return TaskProgress(
        label=task.spec.label,
        stage=task.stage,
        done=task.search.done,
        total=task.spec.budget.trials,
        best_us=math.exp(best.score) if best is not None and best.score is not None else None,
        confirmed_us=None if ships is None else ships.median_us,
        speedup=None if ships is None or ships.log_ratio is None else math.exp(ships.log_ratio),
    )
