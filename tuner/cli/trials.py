"""`tuner trials`: the stored trials of a run, all of them or those that meet conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.column_units import format_us
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    pick_run,
    settings_of,
    store_of,
)
from tuner.cli.console import READABLE, Format, FormatOption, emit, note
from tuner.cli.variant_options import config_cell

if TYPE_CHECKING:
    from results_db.stored_records import FoundTrial

#: Columns for readers, and for programs.
_SHOWN = ("trial", "kernel", "workload", "device", "status", "time", "config", "message")
_FIELDS = (
    "trial",
    "kernel",
    "workload",
    "device",
    "status",
    "source",
    "strategy",
    "median_us",
    "registers",
    "spill_bytes",
    "shared_bytes",
    "config",
    "message",
)
_DETAILS = ("config", "message")
_SHARED = ("kernel", "workload", "device")


def list_trials(
    run: RunArgument = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only trials that meet these conditions, as 'num_warps=8 status=failed "
            "time<50us'; may be repeated."
        ),
    ] = None,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the trials of a run, task by task, in the order in which they were proposed."""
    from results_db.stored_records import TrialFilter
    from search_spaces.records import Status
    from tuner.cli.trial_conditions import explain_none, find_matching, parse_conditions

    conditions = parse_conditions(where or ())
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        info = pick_run(store, run)
        trials = store.list_trials(TrialFilter(info.run_id, statuses=tuple(Status)))
    found = find_matching(trials, conditions)
    rows = [_make_row(trial, style) for trial in found]
    if rows or style is not Format.TABLE:
        columns = _SHOWN if style in READABLE else _FIELDS
        emit(rows, columns, style, details=_DETAILS, shared=_SHARED)
    if not rows:
        note(explain_none(trials, conditions))


def _make_row(trial: FoundTrial, style: Format) -> dict[str, Any]:
    row = {name: getattr(trial, name) for name in (*_SHARED, *_FIELDS[4:-2], "message")}
    return {
        **row,
        "status": trial.state,
        "trial": f"{trial.run_id}/{trial.task_id}/{trial.number}",
        "workload": trial.workload.key,
        "time": format_us(trial.median_us),
        "config": config_cell(trial.config, style),
    }
