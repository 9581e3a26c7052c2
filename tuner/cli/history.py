"""`tuner history` and `tuner regressions`: a kernel's results over runs, and what became slower."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.errors import FIRST_RUN
from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.cli.command_context import (
    ConfigOption,
    WorkloadsOption,
    complete_campaigns,
    complete_kernels,
    flag,
    open_store,
    settings_of,
    storable,
    store_of,
)
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import QuietOption, remeasure
from tuner.views.regression_list import REGRESSIONS, list_regressions
from tuner.views.runs import HISTORY, list_results

if TYPE_CHECKING:
    from pathlib import Path

    from results_db import Store
    from tuner.campaign import RunOutcome
    from tuner.settings.sections import Settings

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
    with open_store(config) as store:
        found = store.list_kernel_tasks(
            kernel, words=words, campaign=campaign, limit=max(last, _LOOKED_AT)
        )
        raised = {each.task_id: each for each in store.regressions()}
        away = store.quarantines()
        missing = "" if found else _explain_none(store, kernel, words, campaign)
    if missing:
        if style is not Format.TABLE:
            emit([], HISTORY, style)
        note(missing)
        raise typer.Exit(1)
    results = list_results(list_histories(found, away), last, raised)
    emit(results.records, results.columns, style)


def _explain_none(store: Store, kernel: str, words: Sequence[str], campaign: str | None) -> str:
    names = store.list_kernels()
    if not names:
        return f"no runs here: {FIRST_RUN}"
    if kernel not in names:
        near = did_you_mean(kernel, names) or f"; known: {', '.join(names)}"
        return f"no run has a kernel {kernel!r}{near}"
    filters = [f"--workload {' '.join(words)!r}"] if words else []
    filters += [f"--campaign {campaign}"] if campaign else []
    return f"no run of {kernel} matches {' '.join(filters)}"


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
            min=1,
            callback=storable,
            metavar="N",
            help="Note that this one is known; may be repeated.",
        ),
    ] = None,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """List the steps to a higher time, over all kernels and runs.

    A step in stored times is a candidate, which two new passes of both configs confirm or refute.
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
            found.decide_candidates(
                store, partial(remeasure, settings, base, quiet=quiet, drifts=True)
            )
        if settings.notify.webhook:
            for line in found.notify(store, settings.notify.webhook):
                note(line)
        rows = list_regressions(store)
    emit(rows, REGRESSIONS, style, empty="no regression")
    if any(each.record.is_open for each in rows):
        raise typer.Exit(1)


def follow_run(
    settings: Settings, base: Path, campaign: str, outcome: RunOutcome, *, quiet: bool
) -> list[str]:
    """Raise and decide what a finished run shows, and notify; a line for each regression that is
    confirmed. Cards that are off go into quarantine.

    What cannot be done here is noted, and `tuner regressions` does it.
    """
    from tuner.campaign import regressions as found
    from tuner.campaign.options import campaign_of
    from tuner.campaign.quarantine import quarantine_outliers

    if outcome.entries is not None:
        return list(outcome.findings)
    if outcome.status != RunStatus.FINISHED or not campaign_of(settings, campaign).regressions:
        return []
    measure = partial(remeasure, settings, base, quiet=quiet, drifts=True)
    try:
        with store_of(settings) as store:
            for line in quarantine_outliers(store, outcome.run_id):
                note(line)
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
