"""What people see of a running engine."""

from __future__ import annotations

import math

from tuner.engine.jobs import Task
from tuner.engine.machine import Engine
from tuner.progress import Progress, TaskProgress


def progress(engine: Engine, *, elapsed_s: float, offered_s: float, fresh: int) -> Progress:
    """A snapshot. offered_s: device seconds there were, used or not; fresh: trials that this
    process finished, on which the rate and the time left are based."""
    done = sum(task.search.done for task in engine.tasks)
    total = _total(engine)
    rate = fresh / elapsed_s if elapsed_s > 0 else 0.0
    left = None if total is None or rate <= 0 else max(0.0, (total - done) / rate)
    shown = [task for task in engine.tasks if task.stage not in ("waiting", "done")]
    return Progress(
        done=done,
        total=total,
        trials_per_s=rate,
        busy_share=min(1.0, engine.floor.busy_s / offered_s) if offered_s > 0 else 0.0,
        elapsed_s=elapsed_s,
        left_s=left,
        building=engine.floor.building,
        measuring=sum(worker.job_id is not None for worker in engine.floor.workers.values()),
        tasks_done=sum(task.stage == "done" for task in engine.tasks),
        tasks_total=len(engine.tasks),
        tasks=tuple(_task(task) for task in shown),
    )


def _total(engine: Engine) -> int | None:
    """Planned trials, when every task's budget or space bounds them."""
    total = 0
    for task in engine.tasks:
        if task.search.stopped:
            total += len(task.search.trials)
        elif task.spec.budget.trials is None:
            return None
        else:
            total += task.spec.budget.trials
    return total


def _task(task: Task) -> TaskProgress:
    best = task.search.champion
    first = task.search.default()
    speedup = None
    if best is not None and best.score is not None and first is not None:
        speedup = math.exp(first.score - best.score) if first.score is not None else None
    return TaskProgress(
        label=task.spec.label,
        stage=task.stage,
        done=task.search.done,
        total=task.spec.budget.trials,
        best_us=math.exp(best.score) if best is not None and best.score is not None else None,
        speedup=speedup,
    )
