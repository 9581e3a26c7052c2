"""`tuner trials`: the stored trials of a run, all of them or those that meet conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.command_context import ConfigOption, RunArgument, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column
from tuner.views.runs import pick_run
from tuner.views.units import format_us

if TYPE_CHECKING:
    from results_db.stored_records import FoundTrial

_TRIALS: tuple[Column[FoundTrial], ...] = (
    Column("trial", lambda trial: f"{trial.run_id}/{trial.task_id}/{trial.number}"),
    Column("kernel"),
    Column("workload", lambda trial: trial.workload.key),
    Column("device"),
    Column("status", lambda trial: trial.state),
    Column("source", heading=None),
    Column("strategy", heading=None),
    Column("median_us", show=lambda trial: format_us(trial.median_us), heading="time"),
    Column("registers", heading=None),
    Column("spill_bytes", heading=None),
    Column("shared_bytes", heading=None),
    Column("config", lambda trial: dict(sorted(trial.config.items()))),
    Column("message"),
)


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
    if found or style is not Format.TABLE:
        emit(found, _TRIALS, style)
    if not found:
        note(explain_none(trials, conditions))
