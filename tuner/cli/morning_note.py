"""`tuner note`: what happened since a time, as one listing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from results_db.promotion_records import PromotionOutcome, RegressionState
from results_db.stored_records import FireState, RunStatus, TaskKey
from search_spaces.errors import TunerError
from tuner.base.log_ratio import Verdict
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit
from tuner.views.column import describe_change
from tuner.views.regression_list import list_regressions

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import RunInfo

#: What the record of firings calls a note that was sent; no campaign has that name.
_SENT = "tuner note"
_COLUMNS = ("what", "run", "kernel", "workload", "device", "text")
#: A line of the note: values of some columns.
Event: TypeAlias = dict[str, Any]


def tell_note(
    since: Annotated[
        str | None, typer.Option(metavar="24h", help="How long ago.", show_default=False)
    ] = None,
    send: Annotated[bool, flag("--send", help="Send it to `notify.webhook` too.")] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Say what happened since the last note that was sent, or in the last 24 hours.

    What became faster or slower, was promoted, is in quarantine or left out, and what it cost.
    """
    from tuner.campaign.regressions import post_text
    from tuner.settings.sections import read_seconds

    settings, _ = settings_of(config)
    with store_of(settings) as store:
        now, sent = store.now(), store.last_fire(_SENT)
        begin = sent.instant if sent else now - timedelta(days=1)
        if since is not None:
            begin = now - timedelta(seconds=min(read_seconds("--since", since), 1e9))
        events = list(list_events(store, begin))
        if send:
            words = [[f"{each.get(name) or ''}" for name in _COLUMNS] for each in events]
            lines = [" ".join(filter(None, line)) for line in words]
            head = f"tuner since {begin:%Y-%m-%d %H:%M}Z"
            if failure := post_text(settings.notify.webhook, head, *lines):
                raise TunerError(f"notify.webhook was not told: {failure}", "correct and rerun it")
            store.claim_fire(_SENT, now, "")
            store.finish_fire(_SENT, now, FireState.FINISHED)
    emit(events, _COLUMNS, style, filled=True)


def list_events(store: Store, since: datetime) -> Iterator[Event]:
    """What runs that ended since then cost and found, and what was decided since."""
    runs = {e.run_id: e for e in store.runs(limit=None) if e.finished_at and e.finished_at >= since}
    yield from _list_costs(store, runs)
    yield from _list_faster(store, runs)
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


def _list_faster(store: Store, runs: dict[int, RunInfo]) -> Iterator[Event]:
    from results_db.task_history import list_histories

    for kernel in sorted({task.key.kernel for run_id in runs for task in store.tasks(run_id)}):
        for history in list_histories(store.list_kernel_tasks(kernel)):
            for each in history.results:
                change = None if each.same_record else each.change
                if each.run.run_id in runs and change and change.verdict() is Verdict.FASTER:
                    text = describe_change(change)
                    yield {"what": "faster", "text": text, **_name(each.run.run_id, each.task.key)}


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
