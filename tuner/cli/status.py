"""`tuner status`: the state of a run, task by task."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from results_db.errors import FIRST_RUN
from results_db.stored_records import RunInfo, RunStatus, Stage
from tuner.base.inert_text import inert
from tuner.campaign import lease
from tuner.cli.command_context import (
    ConfigOption,
    RunArgument,
    flag,
    open_store,
)
from tuner.cli.console import Format, FormatOption, console, emit, note
from tuner.views.column import Listing
from tuner.views.outcomes import TaskState, list_tasks
from tuner.views.rich_table import render_listing
from tuner.views.runs import RUNS, describe_run, pick_run

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live
    from rich.segment import Segment

    from results_db import Store

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
    with open_store(config) as store:
        if every:
            _emit_runs(store, style)
            return
        info = pick_run(store, run)
        if watch:
            info = _watch(store, info)
        if style is Format.TABLE:
            print(inert(describe_run(info)))
        tasks = list_tasks(store, info.run_id)
        emit(tasks.records, tasks.columns, style)
        if unknown := sum(each.is_open for each in store.regressions()):
            note(f"{unknown} confirmed regressions, not acknowledged: see `tuner regressions`")


def list_runs(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """List the runs, newest first, with their tags."""
    with open_store(config) as store:
        _emit_runs(store, style)


def _emit_runs(store: Store, style: Format) -> None:
    emit(store.runs(), RUNS, style, empty=f"no runs here: {FIRST_RUN}")


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
            view = _TasksView(inert(describe_run(info)), list_tasks(store, info.run_id))
            live.update(view, refresh=True)
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
    tasks: Listing[TaskState]

    def __rich_console__(
        self, screen: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType | Segment]:
        from rich.console import Group
        from rich.segment import Segment
        from rich.text import Text

        yield Text(self.headline, no_wrap=True, overflow="ellipsis")
        # Where not all fit, those in progress come first.
        tasks = sorted(self.tasks.records, key=lambda each: each.task.stage == Stage.DONE)
        shown = replace(self.tasks, records=tasks[: options.height])
        drawn = Group(*render_listing(shown, options.max_width)) if tasks else Group()
        lines = screen.render_lines(drawn, options.update(height=None), pad=False)
        room = len(lines) if options.height is None else options.height - 2
        for line in lines[:room]:
            yield from line
            yield Segment.line()
        if room < len(lines):
            over = sum(each.task.stage == Stage.DONE for each in tasks)
            yield Text(f"{over} of {len(tasks)} tasks done", "dim")
