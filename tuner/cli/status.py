"""`tuner status`: the state of a run, task by task."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from results_db.errors import FIRST_RUN
from results_db.shipped import select_shipped
from results_db.stored_records import RunInfo, RunStatus, Stage, TaskSummary
from tuner.base.inert_text import inert
from tuner.campaign import lease
from tuner.cli.column_units import format_us
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    flag,
    pick_run,
    settings_of,
    store_of,
)
from tuner.cli.console import BELOW, READABLE, Format, FormatOption, cell, console, emit, note
from tuner.cli.text_table import TextTable
from tuner.cli.variant_options import config_cell
from tuner.cli.winners import STYLES, format_winner, make_ratios

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.text import Text

    from results_db import Store

_RUNS = ("run", "tag", "campaign", "status", "started_at", "finished_at", "seed")
#: Columns for programs.
FIELDS = (
    "task",
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
    "config",
    "speedup",
    "speedup_low",
    "speedup_high",
    "baseline",
    "over_baseline",
    "over_baseline_low",
    "over_baseline_high",
    "baseline_verdict",
)
#: Columns for readers.
SHOWN = (
    "kernel",
    "workload",
    "device",
    "state",
    "time",
    "vs_default",
    "vs_baseline",
    "trials",
    "config",
    "note",
)
_WATCH_EVERY_S = 2.0
#: Seconds after which a new size of the terminal shows.
_RESIZE_EVERY_S = 0.2


def status(
    run: RunArgument = None,
    config: ConfigOption = None,
    every: Annotated[bool, flag("--all", help="List all runs instead of one run's tasks.")] = False,
    watch: Annotated[bool, flag("--watch", help="Repeat until the run ends.")] = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show the state of a run, task by task."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        if every:
            _emit_runs(store, style)
            return
        info = pick_run(store, run)
        if watch:
            info = _watch(store, info)
        if style is Format.TABLE:
            print(inert(headline(info)))
        rows = list_tasks(store, info.run_id, style)
        columns = SHOWN if style in READABLE else FIELDS
        emit(rows, columns, style, details=BELOW, shared=("device",), styles=STYLES)
        if unknown := sum(each.is_open for each in store.regressions()):
            note(f"{unknown} confirmed regressions, not acknowledged: see `tuner regressions`")


def list_runs(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the runs, newest first, with their tags."""
    settings, _ = settings_of(config)
    with store_of(settings) as store:
        _emit_runs(store, style)


def _emit_runs(store: Store, style: Format) -> None:
    rows = [_run_row(info) for info in store.runs()]
    emit(rows, _RUNS, style, empty=f"no runs here: {FIRST_RUN}")


def headline(info: RunInfo) -> str:
    """One line about a run."""
    name = f"{info.run_id} ({info.tag})" if info.tag else f"{info.run_id}"
    parts = [f"run {name} of {info.campaign}: {info.status}"]
    parts.append(f"started {info.started_at:%Y-%m-%d %H:%M}Z")
    if lease.abandoned(info):
        parts.append("its driver is dead; rerun `tuner run` to resume it")
    if info.finished_at is not None:
        parts.append(f"took {(info.finished_at - info.started_at).total_seconds():.0f} s")
    return ", ".join(parts)


def list_tasks(store: Store, run_id: int, style: Format) -> list[dict[str, object]]:
    """The tasks of a run as listings in that format show them, with their references."""
    return [
        _format_row({"task": f"{run_id}/{task.task_id}", **_make_row(task)}, style)
        for task in store.overview(run_id)
        if not task.left_out
    ]


def _make_row(task: TaskSummary) -> dict[str, Any]:
    """The row of a task; best_us is the time of what ships or, unconfirmed, of the best trial."""
    chosen = task.selection
    ships = select_shipped(chosen) if chosen and chosen.median_us is not None else None
    reason = task.why_none_correct if task.stage == Stage.DONE else ""
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
        "note": "; ".join(filter(None, [task.note, ships.kept_because if ships else "", reason])),
        "config": dict(ships.config) if ships else None,
        **(make_ratios(ships, task.baselines) if ships else {}),
    }


def _format_row(row: dict[str, Any], style: Format) -> dict[str, object]:
    """The row in that format: ratios and configs as texts for readers, else as numbers."""
    if style not in READABLE:
        return {**row, "config": config_cell(row["config"], style)}
    trials, failed = row["trials"], row["failed"]
    return {
        **row,
        "state": row["stage"],
        "time": format_us(row["best_us"]),
        "trials": f"{trials}, {failed} failed" if failed else trials,
        **format_winner(row),
    }


def _run_row(info: RunInfo) -> dict[str, object]:
    return {
        "run": info.run_id,
        "tag": info.tag,
        "campaign": info.campaign,
        "status": info.status,
        "started_at": info.started_at,
        "finished_at": info.finished_at,
        "seed": info.seed,
    }


def _watch(store: Store, info: RunInfo) -> RunInfo:
    """Show the tasks on stderr until the run has ended, on a terminal as a full screen."""
    from rich.live import Live

    screen = console(stderr=True)
    full = sys.stdout.isatty() and sys.stderr.isatty()
    with (
        _left_by_sigterm(),
        Live(console=screen, auto_refresh=False, screen=full, transient=True) as live,
    ):
        while True:
            info = store.run(info.run_id)
            rows = list_tasks(store, info.run_id, Format.TABLE)
            live.update(_TasksView(inert(headline(info)), rows), refresh=True)
            if info.status != RunStatus.RUNNING or lease.abandoned(info):
                return info
            _wait(live)


def _wait(live: Live) -> None:
    """Wait for the next look at the database, and meanwhile draw again at each new size."""
    size, until_s = live.console.size, time.monotonic() + _WATCH_EVERY_S
    while time.monotonic() < until_s:
        time.sleep(_RESIZE_EVERY_S)
        if live.console.size != size:
            size = live.console.size
            live.refresh()


@contextmanager
def _left_by_sigterm() -> Iterator[None]:
    """SIGTERM counts as Ctrl-C: the terminal gets back what it showed before."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class _TasksView:
    """The tasks of a run, drawn at the size that the screen has at that moment."""

    headline: str
    rows: Sequence[dict[str, Any]]

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self.headline, no_wrap=True, overflow="ellipsis")
        # Where not all fit, those in progress come first.
        rows = sorted(self.rows, key=lambda row: row["stage"] == Stage.DONE)[: options.height]
        tasks = TextTable(rows, SHOWN, cell, BELOW, ("device",), STYLES)
        lines = tasks.make_lines(screen, options.max_width) if rows else []
        room = len(lines) if options.height is None else options.height - 2
        yield from lines[:room]
        if room < len(lines):
            over = sum(row["stage"] == Stage.DONE for row in self.rows)
            yield Text(f"{over} of {len(self.rows)} tasks done", "dim")
