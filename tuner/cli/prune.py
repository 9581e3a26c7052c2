"""`tuner prune`: delete the trials of old runs, and none that something still refers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import RunStatus
from tuner.cli.command_context import ConfigOption, flag, settings_of, store_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column
from tuner.views.runs import RUNS

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import ExportInfo, RunInfo


def prune(
    keep: Annotated[
        int, typer.Option(min=1, help="How many runs of each campaign to keep, the newest.")
    ],
    dry_run: Annotated[
        bool,
        flag("--dry-run", help="List the older runs and what would be deleted; delete nothing."),
    ] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Delete the trials of all but the newest runs of each campaign.

    Kept are runs that have a tag, can be resumed or are published in a file that `tuner run` or
    `tuner export` wrote last, and trials whose results a kept run has taken over. Runs, winners
    and confirmations stay.
    """
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        published = dict(_find_published(store))
        older = list(_find_older(store.runs(limit=None), keep))
        why = {run.run_id: _explain_kept(run, published) for run in older}
        found = store.find_prunable([run_id for run_id, reason in why.items() if not reason])
        counts = Counter(trial.run_id for trial in found)
        if dry_run:
            columns: list[Column[RunInfo]] = [
                *RUNS[:5],
                Column("trials", lambda run: counts[run.run_id]),
                Column("kept_because", lambda run: why[run.run_id]),
            ]
            shown = [run for run in older if counts[run.run_id] or why[run.run_id]]
            emit(shown, columns, style, empty="no older run")
        deleted = len(found) if dry_run else store.forget(found)
    kept = sum(map(bool, why.values()))
    done = "would be deleted" if dry_run else "deleted"
    note(f"{deleted} trials of {len(counts)} runs {done}; {kept} older runs are kept")


def _find_older(runs: Iterable[RunInfo], keep: int) -> Iterator[RunInfo]:
    """The runs behind the newest ones of each campaign. runs: newest first."""
    seen: Counter[str] = Counter()
    for run in runs:
        seen[run.campaign] += 1
        if seen[run.campaign] > keep:
            yield run


def _explain_kept(run: RunInfo, published: dict[int, str]) -> str:
    if run.tag is not None:
        return f"tagged {run.tag}"
    if run.status in (RunStatus.RUNNING, RunStatus.INTERRUPTED):
        return f"{run.status}, can be resumed"
    return f"published in {published[run.run_id]}" if run.run_id in published else ""


def _find_published(store: Store) -> Iterator[tuple[int, str]]:
    """The runs whose results are in files, each with one of them.

    A later export to a path has replaced the file; paths that are relative may be of two folders.
    """
    seen: set[str] = set()
    for export in store.exports():
        if export.path in seen:
            continue
        if Path(export.path).is_absolute():
            seen.add(export.path)
        for run_id in _list_runs(store, export):
            yield run_id, export.path


def _list_runs(store: Store, export: ExportInfo) -> Iterator[int]:
    if export.run_id is not None:
        yield export.run_id
    else:
        yield from {store.task(task_id).run_id for task_id in export.task_ids}
