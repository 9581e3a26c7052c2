"""`tuner tag`, `tuner forget` and `tuner prune`: name stored runs, and delete what they hold."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.promotion_records import RegressionState
from results_db.stored_records import RunStatus
from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from search_spaces.records import Status, config_key
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    complete_kernels,
    complete_runs,
    flag,
    open_store,
)
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.views.column import Column
from tuner.views.runs import RUNS, pick_run

if TYPE_CHECKING:
    from results_db import Store
    from results_db.stored_records import ExportInfo, FoundTrial, RunInfo

#: A word that is no number and holds no `/`, which separates run, task and trial.
_NAME = re.compile(r"[^\W\d][\w.+-]{0,99}")


def tag(
    run: RunArgument = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A word that does not begin with a digit; alone, that of the latest run.",
            metavar="NAME",
        ),
    ] = None,
    remove: Annotated[bool, flag("--remove", help="Remove the run's tag.")] = False,
    config: ConfigOption = None,
) -> None:
    """Give a run a tag, by which every command takes it, and keep it from `tuner prune`.

    A run has one tag, and a tag is that of one run: it moves from a run that has it.
    """
    if name is None and not remove and run is not None and _NAME.fullmatch(run):
        run, name = None, run
    if (name is None) != remove:
        raise TunerError("tag: give either NAME or --remove", "as in `tuner tag 7 baseline`")
    if name is not None and _NAME.fullmatch(name) is None:
        raise TunerError(
            f"{name!r:.120} is no name of a run",
            "write up to 100 letters, digits, '_', '.', '+' and '-', with a letter first",
        )
    with open_store(config) as store:
        info = pick_run(store, run)
        former = store.tag_run(info.run_id, name)
    if former is not None:
        note(f"run {former} is no longer {name!r}")
    note(f"run {info.run_id} of {info.campaign} " + (f"is {name!r}" if name else "has no tag"))


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
            metavar="STATUS",
            help="Only trials with this status: correct, constraints, compile, runtime, timeout or "
            "correctness; may be repeated. By default all failures.",
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

    with open_store(config) as store:
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


def prune(
    keep: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many runs of each campaign to keep, the newest.", show_default=False
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="90d", help="Only runs that ended longer ago.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool,
        flag("--dry-run", help="List the older runs and what would be deleted; delete nothing."),
    ] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Delete the trials of old runs: all but the newest of each campaign, those of an age, or both.

    Kept are runs that have a tag, can be resumed, are in a regression that is not settled or are
    published in a file that `tuner run` or `tuner export` wrote last, and trials whose results a
    kept run has taken over. Runs, winners and confirmations stay.
    """
    from tuner.settings.sections import read_seconds

    if keep is None and older_than is None:
        raise TunerError("prune: give --keep or --older-than", "as in `tuner prune --keep 10`")
    age_s = -math.inf if older_than is None else read_seconds("--older-than", older_than)
    with open_store(config) as store:
        named = dict(_find_unsettled(store)) | dict(_find_published(store))
        older = list(_find_older(store, keep or 0, age_s))
        why = {run.run_id: _explain_kept(run, named) for run in older}
        pruned = [run_id for run_id, reason in why.items() if not reason]
        counts = Counter(store.count_prunable(pruned))
        if dry_run:
            columns: list[Column[RunInfo]] = [
                *RUNS[:5],
                Column("trials", lambda run: counts[run.run_id]),
                Column("kept_because", lambda run: why[run.run_id]),
            ]
            shown = [run for run in older if counts[run.run_id] or why[run.run_id]]
            emit(shown, columns, style, empty="no older run")
        deleted = counts.total() if dry_run else store.prune([*counts])
    kept = sum(map(bool, why.values()))
    done = "would be deleted" if dry_run else "deleted"
    note(f"{deleted} trials of {len(counts)} runs {done}; {kept} older runs are kept")


def _find_older(store: Store, keep: int, age_s: float) -> Iterator[RunInfo]:
    """The runs behind the newest ones of each campaign that ended longer ago, newest first."""
    now = store.now()
    seen: Counter[str] = Counter()
    for run in store.runs(limit=None):
        seen[run.campaign] += 1
        ended = run.finished_at or run.started_at
        if seen[run.campaign] > keep and (now - ended).total_seconds() > age_s:
            yield run


def _explain_kept(run: RunInfo, named: dict[int, str]) -> str:
    """Why a run is kept; empty for one that is not. named: reasons by run."""
    if run.tag is not None:
        return f"tagged {run.tag}"
    if run.status in (RunStatus.RUNNING, RunStatus.INTERRUPTED):
        return f"{run.status}, can be resumed"
    return named.get(run.run_id, "")


def _find_unsettled(store: Store) -> Iterator[tuple[int, str]]:
    """The runs on both sides of regressions that are neither refuted nor acknowledged."""
    for each in store.regressions():
        if each.state is not RegressionState.REFUTED and each.acknowledged_at is None:
            for task in store.tasks_by_number((each.task_id, each.former_task_id)).values():
                yield task.run_id, f"in regression {each.id}, {each.state}"


def _find_published(store: Store) -> Iterator[tuple[int, str]]:
    """The runs whose results are in files.

    A later export to a path has replaced the file; paths that are relative may be of two folders.
    """
    seen: set[str] = set()
    for export in store.exports():
        if export.path in seen:
            continue
        if Path(export.path).is_absolute():
            seen.add(export.path)
        for run_id in _list_runs(store, export):
            yield run_id, f"published in {export.path}"


def _list_runs(store: Store, export: ExportInfo) -> Iterator[int]:
    if export.run_id is not None:
        yield export.run_id
    else:
        yield from {store.task(task_id).run_id for task_id in export.task_ids}
