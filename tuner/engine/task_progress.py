"""The progress of a running engine, as users see it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from results_db.shipped import select_shipped
from results_db.stored_records import SelectionRecord, Stage
from tuner.engine.engine import Engine
from tuner.engine.finals_time import TimeLeft
from tuner.engine.range_search import COMPARED
from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.progress import Progress, TaskProgress


def progress(
    engine: Engine,
    *,
    now: float,
    elapsed_s: float,
    offered_s: float,
    fresh: int,
    chosen: Mapping[int, SelectionRecord],
    time_left: TimeLeft,
) -> Progress:
    """The progress of all tasks.

    now: the engine's time. elapsed_s: since the run began. offered_s: device seconds of all
    workers, used or not. fresh: trials that this process finished; the rate and the time left
    follow from them. chosen: outcomes of tasks that are shown as done for the first time.
    time_left: that of this run.
    """
    done = sum(task.search.trials.done for task in engine.tasks)
    total = _total(engine)
    rate = fresh / elapsed_s if elapsed_s > 0 else 0.0
    stage, activity = _activity(engine)
    shown = [
        task
        for task in engine.tasks
        if task.active or (task.stage is Stage.DONE and task.spec.task_id in chosen)
    ]
    return Progress(
        done=done,
        total=total,
        trials_per_s=rate,
        busy_share=min(1.0, engine.dispatcher.busy_s / offered_s) if offered_s > 0 else 0.0,
        elapsed_s=elapsed_s,
        left_s=time_left.update(
            now, fresh, None if total is None else total - done, engine.finals_left_s(now)
        ),
        building=engine.dispatcher.building,
        measuring=sum(worker.job_id is not None for worker in engine.dispatcher.workers.values()),
        tasks_done=sum(task.stage is Stage.DONE for task in engine.tasks),
        tasks_total=len(engine.tasks),
        tasks=tuple(_task(task, chosen.get(task.spec.task_id)) for task in shown),
        stage=stage,
        activity=activity,
    )


def _activity(engine: Engine) -> tuple[str, str]:
    """The stage of the run in one word, and what it does in one line."""
    if len(engine.tasks) == 1:
        return _activity_of(engine, engine.tasks[0])
    texts = [_activity_of(engine, task)[0] for task in engine.tasks if task.active]
    counts = Counter(text for text in texts if text)
    done = sum(task.stage is Stage.DONE for task in engine.tasks)
    trials = sum(task.search.trials.done for task in engine.tasks)
    parts = [f"{stage} {number}" for stage, number in counts.items()]
    text = ", ".join([f"{done} of {len(engine.tasks)} tasks done", *parts])
    return "tuning", f"{text}: {trials} trials"


def _activity_of(engine: Engine, task: Task) -> tuple[str, str]:
    finals = task.finals
    if task.stage is Stage.DONE:
        return "closing", "ending the run"
    if finals is not None and task.stage is Stage.CONFIRM:
        names = task.spec.baselines
        return "confirming", f"confirming against {len(names)} baseline{'s' * (len(names) != 1)}"
    if finals is not None:
        return "racing", f"racing {len(finals.finalists)}"
    given = len(task.spec.given)
    if task.spec.aim is Aim.VERIFY:
        return "verifying", f"verifying {task.search.trials.done} of {given}"
    if task.spec.aim is Aim.COMPARE and not engine.dispatcher.building:
        return "measuring", f"measuring {given} side by side"
    if task.search.trials.done:
        best = _best_us(task)
        text = f"searching: {task.search.trials.done} trials"
        return "searching", text if best is None else f"{text}, best {best:.4g} us"
    opening = "" if engine.dispatcher.workers else f", opening {task.spec.device.name}"
    building = engine.dispatcher.building
    if not building:
        return "searching", f"measuring the first variants{opening}"
    return "building", f"building {building} variant{'s' * (building != 1)}{opening}"


def _total(engine: Engine) -> int | None:
    """The planned trials; None while a search without a limit of trials is open."""
    total = 0
    for task in engine.list_expected():
        planned = task.spec.budget.trials
        if task.search.asker.stopped or task.stage is Stage.DONE:
            total += len(task.search.trials)
        elif task.spec.place and task.spec.place.between and task.search.asker.only_compares:
            total += COMPARED if planned is None else min(COMPARED, planned)
        elif planned is None:
            return None
        else:
            total += planned
    return total


def _best_us(task: Task) -> float | None:
    best = task.search.incumbent
    return math.exp(best.score) if best is not None and best.score is not None else None


def _task(task: Task, chosen: SelectionRecord | None) -> TaskProgress:
    ships = None if chosen is None or task.stage is not Stage.DONE else select_shipped(chosen)
    return TaskProgress(
        label=task.spec.label,
        stage=task.stage,
        done=task.search.trials.done,
        total=task.spec.budget.trials,
        best_us=_best_us(task),
        confirmed_us=None if ships is None else ships.median_us,
        speedup=None if ships is None or ships.log_ratio is None else ships.log_ratio.ratio,
    )
