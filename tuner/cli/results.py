"""`tuner status`, `tuner report` and `tuner export`: what runs have left in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.shipped import shipped
from search_spaces.errors import TunerError
from search_spaces.inert_text import inert
from tuner.campaign import lease
from tuner.campaign.findings import why_none_correct
from tuner.cli.console import Format, FormatOption, console, emit, note, table
from tuner.cli.context import ConfigOption, RunArgument, pick_run, settings_of, store_of

if TYPE_CHECKING:
    from results_db import Store
    from results_db.records import RunInfo, TaskInfo, TaskSummary
    from search_spaces.kernel import Kernel
    from tuner.settings.models import Settings

_RUNS = ("run", "campaign", "status", "started_at", "finished_at", "seed")
_TASKS = (
    "kernel",
    "workload",
    "device",
    "stage",
    "trials",
    "failed",
    "best_us",
    "default_us",
    "verdict",
    "ships",
    "note",
)
_WATCH_EVERY_S = 2.0


def status(
    run: RunArgument = None,
    config: ConfigOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all runs instead of one's tasks.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run ends.")] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show where a run stands, task by task."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        if every:
            runs = [_run_row(info) for info in store.runs()]
            emit(runs, _RUNS, style, empty="the database has no run yet")
            return
        info = pick_run(store, run)
        if watch:
            info = _watch(store, info)
        if style is Format.TABLE:
            print(inert(headline(info)))
        emit(task_rows(store, info.run_id), _TASKS, style)


def report(
    run: RunArgument = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The HTML file to write.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write the HTML report of a run."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        import reports

        info = pick_run(store, run)
        path = output or Path(settings.paths.results) / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        reports.write(store, info.run_id, path)
    print(inert(path))
    if show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            note("no browser could be started")


def export(
    run: RunArgument = None,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="tuner, triton, t4, csv, parquet, optuna, space or another exporter's name.",
        ),
    ] = "tuner",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write to.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing; exit with 1 if the tables there are malformed or stale and, where "
            "RUN is given, if they are not what that run found.",
        ),
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Write the winners of a run as tables that kernels load, or as data for other tools."""
    from tuner import tables

    settings, base = settings_of(config)
    folder = output or Path(settings.paths.tables)
    if check:
        _check(settings, base, run, folder, kind)
        return
    with store_of(settings) as store:
        info = pick_run(store, run)
        kernels = _own_kernels(settings, base, store.tasks(info.run_id))
        written = tables.export(store, info.run_id, folder, kind, kernels)
    for path in written:
        print(inert(path))
    if not written:
        raise TunerError(
            f"run {info.run_id} has nothing to export as {kind}",
            "only tasks with a confirmed winner go into tables; see `tuner status`",
        )


def _check(settings: Settings, base: Path, run: int | None, folder: Path, kind: str) -> None:
    from tuner import tables

    if run is None:
        if not folder.is_file() and not any(folder.glob("*@*.json")):
            raise TunerError(f"{folder}: there are no tables", "write them with `tuner export`")
        findings = tables.check([folder], _own_kernels(settings, base, None))
    else:
        with store_of(settings) as store:
            info = pick_run(store, run)
            kernels = _own_kernels(settings, base, store.tasks(info.run_id))
            findings = tables.check_export(store, info.run_id, folder, kind, kernels)
    for finding in findings:
        print(inert(finding))
    if findings:
        raise typer.Exit(1)
    note(f"{folder}: up to date")


def _own_kernels(
    settings: Settings, base: Path, tasks: Sequence[TaskInfo] | None
) -> dict[str, Kernel]:
    """Kernels that only the configuration knows; imported only where a task is one of theirs.

    One that does not import is reported and left out: its tables then hold for exact keys alone.
    """
    from search_spaces import registry

    if tasks is not None and {task.key.kernel for task in tasks} <= set(registry.available()):
        return {}
    lines = [task.kernel for plan in settings.campaigns.values() for task in plan.tasks]
    specs = dict.fromkeys(spec for spec in [*settings.kernels, *lines] if ":" in spec)
    found = {}
    for spec in specs:
        try:
            kernel = registry.load_undecided(spec, (str(base),))
        except TunerError as error:
            note(f"left out: {error.message}")
        else:
            found[kernel.name] = kernel
    return found


def headline(info: RunInfo) -> str:
    """One line about a run."""
    parts = [f"run {info.run_id} of {info.campaign}: {info.status}"]
    parts.append(f"started {info.started_at:%Y-%m-%d %H:%M}Z")
    if lease.abandoned(info):
        parts.append("its driver is gone; the same `tuner run` goes on with it")
    if info.finished_at is not None:
        parts.append(f"took {(info.finished_at - info.started_at).total_seconds():.0f} s")
    return ", ".join(parts)


def task_rows(store: Store, run_id: int) -> list[dict[str, object]]:
    """The tasks of a run as the listing shows them."""
    return [_task_row(task) for task in store.overview(run_id)]


def _task_row(task: TaskSummary) -> dict[str, object]:
    """One task; best_us is of what ships, and of the best trial so far until that is confirmed."""
    chosen = task.selection
    ships = shipped(chosen) if chosen and chosen.median_us is not None else None
    why = why_none_correct(task) if task.stage == "done" else ""
    return {
        "kernel": task.kernel,
        "workload": task.workload,
        "device": task.device,
        "stage": task.stage,
        "trials": task.trials,
        "failed": task.trials - task.correct,
        "best_us": ships.median_us if ships else task.best_us,
        "default_us": chosen.default_us if chosen else None,
        "verdict": chosen.verdict if chosen else None,
        "ships": None if ships is None else "default" if ships.default_kept else "winner",
        "note": "; ".join(filter(None, [task.note, ships.kept_because if ships else "", why])),
    }


def _run_row(info: RunInfo) -> dict[str, object]:
    return {
        "run": info.run_id,
        "campaign": info.campaign,
        "status": info.status,
        "started_at": info.started_at,
        "finished_at": info.finished_at,
        "seed": info.seed,
    }


def _watch(store: Store, info: RunInfo) -> RunInfo:
    """Show the tasks on stderr until the run has ended."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(stderr=True), auto_refresh=False, transient=True) as live:
        for current in _until_ended(store, info):
            rows = task_rows(store, current.run_id)
            live.update(Group(Text(inert(headline(current))), table(rows, _TASKS)), refresh=True)
            info = current
    return info


def _until_ended(store: Store, info: RunInfo) -> Iterator[RunInfo]:
    while True:
        info = pick_run(store, info.run_id)
        yield info
        if info.status != "running" or lease.abandoned(info):
            return
        time.sleep(_WATCH_EVERY_S)
