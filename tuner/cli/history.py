"""`tuner history`: the confirmed results of one kernel, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.errors import FIRST_RUN
from search_spaces.near_names import did_you_mean
from tuner.cli.command_context import ConfigOption, WorkloadsOption, settings_of, store_of
from tuner.cli.completion import complete_campaigns, complete_kernels
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.history import HISTORY, list_results

if TYPE_CHECKING:
    from results_db import Store

#: Runs that detection looks at, also where fewer are shown.
_LOOKED_AT = 50


def history(
    kernel: Annotated[
        str,
        typer.Argument(
            help="The kernel's name.", metavar="KERNEL", autocompletion=complete_kernels
        ),
    ],
    workload: WorkloadsOption = None,
    campaign: Annotated[
        str | None,
        typer.Option(help="Only runs of this campaign.", autocompletion=complete_campaigns),
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many runs of each workload to show.")
    ] = 20,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show the confirmed results of a kernel run by run, newest first, with steps and breaks.

    A change is that against the run before, by what both confirmed in one pass with what they
    ship: the default config, or across a break a baseline. Exits with 1 if nothing is known.
    """
    from results_db.task_history import list_histories

    words = [word for text in workload or () for word in text.split()]
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        found = store.list_kernel_tasks(
            kernel, words=words, campaign=campaign, limit=max(last, _LOOKED_AT)
        )
        raised = {each.task_id: each for each in store.regressions()}
        missing = "" if found else _explain_none(store, kernel, words, campaign)
    if missing:
        if style is not Format.TABLE:
            emit([], HISTORY, style)
        note(missing)
        raise typer.Exit(1)
    results = list_results(list_histories(found), last, raised)
    emit(results.records, results.columns, style)


def _explain_none(store: Store, kernel: str, words: Sequence[str], campaign: str | None) -> str:
    names = store.list_kernels()
    if not names:
        return f"no runs here: {FIRST_RUN}"
    if kernel not in names:
        return f"no run has a kernel {kernel!r}{did_you_mean(kernel, names)}"
    filters = [f"--workload {' '.join(words)!r}"] if words else []
    filters += [f"--campaign {campaign}"] if campaign else []
    return f"no run of {kernel} matches {' '.join(filters)}"
