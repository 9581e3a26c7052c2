"""Progress of a campaign on stderr: a live display on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from results_db.stored_records import Stage
from tuner.base.inert_text import inert
from tuner.cli.console import console
from tuner.progress import Progress, ProgressCallback, TaskProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S = 5.0
_LABEL_WIDTH = 46


@contextmanager
def watch(*, quiet: bool = False) -> Iterator[ProgressCallback | None]:
    """A callback that shows progress on stderr until the block ends."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield ProgressLines(sys.stderr.write)


@contextmanager
def _live() -> Iterator[ProgressCallback]:
    from rich.live import Live

    latest, at_s = Progress.of_stage("starting"), time.monotonic()

    def keep(progress: Progress) -> None:
        nonlocal latest, at_s
        latest, at_s = progress, time.monotonic()

    def now() -> RenderableType:
        return picture(replace(latest, elapsed_s=latest.elapsed_s + time.monotonic() - at_s))

    # The display draws itself several times a second, so that no stage looks like a halt.
    with Live(
        console=console(stderr=True), refresh_per_second=4, transient=True, get_renderable=now
    ):
        yield keep


class ProgressLines:
    """One line every few seconds, for every stage and for every finished task, for logs."""

    def __init__(
        self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_s = 0.0
        self._stage = ""
        self._open: dict[str, TaskProgress] = {}

    def __call__(self, progress: Progress) -> None:
        stage = progress.stage if progress.tasks_total else progress.activity
        if stage != self._stage:
            self._stage = stage
            self._write(f"{inert(progress.activity)}\n")
        if progress.stage and not progress.tasks_total:  # before or after the search
            return
        seen = {task.label: task for task in progress.tasks}
        over = {label for label, task in seen.items() if task.stage == Stage.DONE}
        vanished = [task for label, task in self._open.items() if label not in seen]
        for task in (*(seen[label] for label in seen if label in over), *vanished):
            self._write(f"done: {format_finished(task)}\n")
        self._open = {label: task for label, task in seen.items() if label not in over}
        now_s = self._clock()
        last = progress.tasks_total > 0 and progress.tasks_done == progress.tasks_total
        if now_s >= self._next_s or last:
            self._next_s = now_s + LINE_EVERY_S
            self._write(f"{summary(progress)}\n")


def summary(progress: Progress) -> str:
    """The whole run in one line."""
    return ", ".join(
        (
            f"{format_count(progress.done, progress.total).strip()} trials",
            f"{progress.trials_per_s:.1f}/s",
            f"device busy {progress.busy_share:.0%}",
            f"{progress.tasks_done} of {progress.tasks_total} tasks done",
            f"left {duration(progress.left_s).strip()}",
        )
    )


def format_finished(task: TaskProgress) -> str:
    """A finished task in one line."""
    best = " ".join(best_of(task).split())
    return inert(task.label) + (f", {best}" if best else "")


def picture(progress: Progress) -> RenderableType:
    """The live display; figures have a fixed width, so the layout does not move."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    activity = Text(f"{inert(progress.activity)}, elapsed {duration(progress.elapsed_s).strip()}")
    if not progress.tasks_total:
        return activity
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(total=progress.total or None, completed=progress.done, width=28),
        Text(format_count(progress.done, progress.total)),
        Text(f"{progress.trials_per_s:6.1f} trials/s"),
        Text(f"device busy {progress.busy_share:4.0%}"),
        Text(f"left {duration(progress.left_s)}"),
    )
    body = Table.grid(padding=(0, 2))
    for task in progress.tasks:
        label = inert(task.label)
        if len(label) > _LABEL_WIDTH:
            label = f"{label[: _LABEL_WIDTH - 1]}…"
        body.add_row(
            Text(label.ljust(_LABEL_WIDTH)),
            Text(task.stage.ljust(7)),
            Text(format_count(task.done, task.total)),
            Text(best_of(task)),
        )
    foot = Text(
        f"tasks {progress.tasks_done} of {progress.tasks_total}, building {progress.building:3d}, "
        f"measuring {progress.measuring:3d}"
    )
    return Group(head, body, foot, activity)


def format_count(done: int, total: int | None) -> str:
    """`  12 of   90`; the total is a dash while unknown."""
    return f"{done:5d} of {'-' if total is None else total:<5}"


def duration(seconds: float | None) -> str:
    """`1h02m03s`, nine characters wide; dashes while unknown."""
    if seconds is None:
        return "--m--s".rjust(9)
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s").rjust(9)


def best_of(task: TaskProgress) -> str:
    """The confirmed time of the config that ships and its speed-up over the default config.

    Before the confirmation: the best trial of the search, without a ratio, since the confirmed time
    may differ.
    """
    if task.confirmed_us is not None:
        gain = "" if task.speedup is None else f" {task.speedup:6.2f}x the default"
        return f"confirmed {task.confirmed_us:10.2f} us{gain}"
    if task.best_us is None:
        return " " * 20
    return f"search best ~{task.best_us:<9.3g} us (unconfirmed)"
