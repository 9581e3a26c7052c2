"""What happened on a farm since a time: the lines of `tuner note` and of its page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from results_db.promotion_records import PromotionOutcome, RegressionState
from results_db.stored_records import NOTE, FireState, RunStatus, TaskKey
from tuner.base.log_ratio import LogRatio, Verdict
from tuner.views.column import describe_change
from tuner.views.regression_list import list_regressions

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import RunInfo
    from results_db.task_history import History, RunResult

EVENTS = ("what", "run", "kernel", "workload", "device", "text")
#: Changes of ln(time) that runs show, against what was usual and against one other run: on two
#: H200s, passes with nothing changed differ by up to 3 %.
_CLEAR, _FAR = 0.036, 0.1
#: A line of the note: values of some columns.
Event: TypeAlias = dict[str, Any]


def begin_note(store: Store) -> datetime:
    """When the last note was sent, or 24 hours ago."""
    sent = (each.instant for each in store.fires(NOTE) if each.state is FireState.FINISHED)
    return next(sent, store.now() - timedelta(days=1))


def list_events(store: Store, since: datetime) -> Iterator[Event]:
    """What runs that ended since then cost and found, and what was decided since."""
    runs = {e.run_id: e for e in store.runs(limit=None) if e.finished_at and e.finished_at >= since}
    yield from _list_costs(store, runs)
    for run_id, run in runs.items():
        if "entries" in run.summary:
            yield {"what": "canary", "run": run_id, "text": run.summary["summary"]}
    yield from _list_changes(store, runs)
    for each in list_regressions(store):
        record = each.record
        known_at = record.decided_at or record.found_at
        if known_at >= since and record.state is not RegressionState.REFUTED:
            text = f"{describe_change(record.log_ratio) or ''} {each.describe_state()}"
            yield {"what": "slower", "text": text, **_name(each.task.run_id, each.task.key)}
    for made in store.promotions():
        if (
            made.outcome is PromotionOutcome.PROMOTED
            and made.decided_at
            and made.decided_at >= since
        ):
            names = {"run": made.run_id, "kernel": made.kernel, "workload": made.workload}
            yield {"what": "promoted", "text": f"to {made.path}", **names}
    for card in store.quarantines():
        if card.is_open:
            text = f"{card.card}: {card.reason}"
            yield {"what": "quarantine", "device": card.device, "text": text}
    yield from _list_undone(store, since, runs)


def _name(run_id: int, key: TaskKey) -> Event:
    names = {"kernel": key.kernel, "workload": key.workload.key, "device": key.device.name}
    return {"run": run_id, **names}


def _list_costs(store: Store, runs: dict[int, RunInfo]) -> Iterator[Event]:
    yield {"what": "runs", "text": len(runs)}
    trials = sum(_count_trials(store, run) for run in runs.values())
    yield {"what": "trials", "text": trials}
    for what, key in (("device hours", "device_s"), ("run hours", "elapsed_s")):
        known = (run.summary.get(key) for run in runs.values())
        seconds = sum(each for each in known if isinstance(each, int | float))
        yield {"what": what, "text": round(seconds / 3600, 2)}


def _count_trials(store: Store, run: RunInfo) -> int:
    """The trials of a run, also those that were deleted since."""
    known = run.summary.get("trials")
    if isinstance(known, int):
        return known
    return sum(task.trials for task in store.overview(run.run_id))


def _list_changes(store: Store, runs: dict[int, RunInfo]) -> Iterator[Event]:
    """What became faster, and what else changed with toolchain, card or code."""
    from results_db.task_history import list_histories

    away = store.quarantines()
    for kernel in sorted({task.key.kernel for run_id in runs for task in store.tasks(run_id)}):
        for history in list_histories(store.list_kernel_tasks(kernel), away):
            for result, change in _find_changes(history):
                if result.run.run_id in runs:
                    what = "faster" if change.value < 0 else "slower"
                    parts = (describe_change(change), *result.breaks)
                    text = " ".join(filter(None, parts))
                    yield {"what": what, "text": text, **_name(result.run.run_id, result.task.key)}


def _find_changes(history: History) -> Iterator[tuple[RunResult, LogRatio]]:
    """Changes for the better, and those for the worse across a break: others are regressions.

    Across a break, one run says it, against what was usual; else two runs do, or one by far.
    """
    for at, each in enumerate(history.results):
        if each.ships is None or each.same_record:
            continue
        change = history.compare_with_usual(at) if each.breaks else each.change
        if change is None or change.verdict() not in (Verdict.FASTER, Verdict.SLOWER):
            continue
        far = abs(change.value) > (_CLEAR if each.breaks else _FAR)
        if far and (each.breaks or change.value < 0):
            yield each, change
    for _, first, shown in history.list_steps():
        step = first.step
        known = first.change is not None and first.change.value < -_FAR
        if step is not None and step.change.value < -_CLEAR and not known:
            yield shown, step.change


def _list_undone(store: Store, since: datetime, runs: dict[int, RunInfo]) -> Iterator[Event]:
    """Firings and runs that failed or were missed, and tasks without a winner."""
    for fire in store.fires(limit=200):
        if (
            fire.state in (FireState.FAILED, FireState.MISSED)
            and (fire.fired_at or fire.instant) >= since
        ):
            text = f"{fire.schedule} of {fire.instant:%Y-%m-%d %H:%M}Z {fire.message}"
            yield {"what": f"{fire.state}", "run": fire.run_id, "text": text.strip()}
    for run_id, run in runs.items():
        if run.status != RunStatus.FINISHED:
            yield {"what": run.status, "run": run_id, "text": run.summary.get("summary")}
        tasks = store.tasks(run_id)
        if sizes := sum(task.left_out for task in tasks):
            yield {"what": "left out", "run": run_id, "text": f"{sizes} sizes of ranges"}
        for task in tasks:
            if task.selection is None and not task.left_out:
                yield {"what": "no winner", "text": task.note, **_name(run_id, task.key)}
