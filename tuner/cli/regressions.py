"""`tuner regressions`: kernels that became slower, decided by a new pass, and told once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from tuner.base.log_ratio import split_ratio
from tuner.cli.command_context import (
    LARGEST,
    ConfigOption,
    flag,
    settings_of,
    store_of,
)
from tuner.cli.console import READABLE, Format, FormatOption, emit, format_estimate, note
from tuner.cli.variant_options import QuietOption, remeasure

if TYPE_CHECKING:
    from pathlib import Path

    from results_db import Store
    from results_db.regression_records import RegressionRecord
    from tuner.campaign import RunOutcome
    from tuner.settings.sections import Settings

_SHOWN = ("regression", "kernel", "workload", "device", "since", "change", "state", "reason")
_FIELDS = (
    "regression",
    "kernel",
    "workload",
    "device",
    "since",
    "before",
    "change",
    "low",
    "high",
    "state",
    "reason",
    "found_at",
    "decided_at",
    "notified_at",
    "acknowledged_at",
)
_STYLES = {"state": lambda row: "red" if row["open"] else ""}


def regressions(
    again: Annotated[
        bool,
        flag(
            "--remeasure",
            help="Decide candidates: measure the configs before and behind each in one pass here.",
        ),
    ] = False,
    acknowledge: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=LARGEST, metavar="N", help="Note that this one is known; may be repeated."
        ),
    ] = None,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the steps to a higher time, over all kernels and runs.

    A step in stored times is a candidate, which a new pass of both configs confirms or refutes.
    Confirmed ones are sent to `notify.webhook`, once. Exits with 1 while one of them is not
    acknowledged.
    """
    from tuner.campaign import regressions as found

    settings, base = settings_of(config)

    with store_of(settings) as store:
        for number in acknowledge or ():
            if not store.acknowledge_regression(number):
                raise TunerError(f"no regression {number}", "`tuner regressions` lists them")
        found.raise_candidates(store)
        if again:
            found.decide_candidates(store, partial(remeasure, settings, base, quiet=quiet))
        if settings.notify.webhook:
            for line in found.notify(store, settings.notify.webhook):
                note(line)
        records = store.regressions()
        rows = [_make_row(store, record, style) for record in records]
    columns = _SHOWN if style in READABLE else _FIELDS
    emit(rows, columns, style, empty="no regression", details=("reason",), styles=_STYLES)
    if any(record.is_open for record in records):
        raise typer.Exit(1)


def follow_run(
    settings: Settings, base: Path, campaign: str, outcome: RunOutcome, *, quiet: bool
) -> list[str]:
    """Raise and decide what a finished run shows, and notify; a line for each that is confirmed.

    What cannot be done here is noted, and `tuner regressions` does it.
    """
    from tuner.campaign import regressions as found
    from tuner.campaign.options import campaign_of

    if outcome.status != RunStatus.FINISHED or not campaign_of(settings, campaign).regressions:
        return []
    measure = partial(remeasure, settings, base, quiet=quiet)
    try:
        with store_of(settings) as store:
            kernels = {task.key.kernel for task in store.tasks(outcome.run_id)}
            found.raise_candidates(store, sorted(kernels))
            confirmed = found.decide_candidates(store, measure, again=False)
            if settings.notify.webhook:
                for line in found.notify(store, settings.notify.webhook):
                    note(line)
            return [found.describe(store, each) for each in confirmed]
    except TunerError as error:
        note(f"regressions are not decided: {error.message}; `tuner regressions` does it")
        return []


def _make_row(store: Store, record: RegressionRecord, style: Format) -> dict[str, Any]:
    task, former = store.task(record.task_id), store.task(record.former_task_id)
    shares = [None if each is None else each - 1 for each in split_ratio(record.log_ratio)]
    change, low, high = shares
    known = "" if record.acknowledged_at is None else ", acknowledged"
    return {
        **{name: getattr(record, name) for name in _FIELDS[-4:]},
        "regression": record.id,
        "kernel": task.key.kernel,
        "workload": task.key.workload.key,
        "device": task.key.device.name,
        "since": f"run {task.run_id}" if style in READABLE else task.run_id,
        "before": former.run_id,
        "change": format_estimate("+.1%", *shares) if style in READABLE else change,
        "low": low,
        "high": high,
        "state": f"{record.state}{known}" if style in READABLE else record.state,
        "reason": record.reason,
        "open": record.is_open,
    }
