"""`tuner forget`: delete stored failures, so that the next run tries their configs again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.near_names import did_you_mean
from search_spaces.records import Status, config_key
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of
from tuner.cli.completion import complete_kernels, complete_runs
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from results_db.stored_records import FoundTrial

_TRIALS: tuple[Column[FoundTrial], ...] = (
    Column("run", lambda trial: trial.run_id),
    Column("kernel"),
    Column("workload", lambda trial: trial.workload.key),
    Column("device"),
    Column("config", lambda trial: config_key(trial.config)),
    Column("status"),
    Column("message"),
)


def forget(
    run: Annotated[
        str | None,
        typer.Option(help="Only trials of this run: number or tag.", autocompletion=complete_runs),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="Only trials of this kernel.", autocompletion=complete_kernels),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Only workloads with these dims, as 'M=32 dtype=float16'."),
    ] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            help="Only trials with this status; may be repeated. By default all failures."
        ),
    ] = None,
    message: Annotated[
        str, typer.Option(help="Only trials with this text in their message or its details.")
    ] = "",
    dry_run: Annotated[
        bool,
        flag("--dry-run", help="List the trials that would be deleted, and delete none."),
    ] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Delete stored failures, so that the next run tries their configs again."""
    from results_db.stored_records import FAILURES, TrialFilter

    settings, _ = settings_of(config)
    with store_of(settings) as store:
        which = TrialFilter(
            run_id=None if run is None else pick_run(store, run).run_id,
            kernel=kernel,
            words=tuple((workload or "").split()),
            statuses=tuple(status) if status else FAILURES,
            text=message,
        )
        found = store.find_trials(which)
        if dry_run:
            emit(found, _TRIALS, style, empty="no trial matches")
        deleted = 0 if dry_run else store.forget(found)
        near = "" if found or kernel is None else did_you_mean(kernel, store.list_kernels())
    counts = Counter(str(trial.status) for trial in found)
    parts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    done = f"{len(found)} trials would be forgotten" if dry_run else f"{deleted} trials forgotten"
    note(f"{done} ({parts})" if found else f"no trial matches{near}; nothing is forgotten")
