"""The display of a run's progress: live on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from results_db.stored_records import Stage
from tuner.base.inert_text import inert
from tuner.progress import Progress, ProgressCallback, TaskProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

#: What shows progress. It raises OSError or ValueError once its reader has left.
_Screen: TypeAlias = "_Terminal | _Notebook | ProgressLines"
#: What is shown until something is known; a log says it only where that takes longer than a line.
_FIRST = "starting"
_LINE_EVERY_S = 5.0
_DRAW_EVERY_S = 0.25
_LABEL_WIDTH = 46
_BAR = "display:inline-block;width:12em;vertical-align:middle;margin-right:0.8em"


@contextmanager
def show_progress(shown: bool | None = None) -> Iterator[ProgressCallback | None]:
    """A callback that shows progress until the block ends; None where nothing is shown.

    shown: None shows it in a notebook and on a terminal; True also elsewhere, as plain lines on
    stderr; False never. Any thread may call it.
    """
    screen = _find_screen(shown)
    if screen is None:
        yield None
        return
    ticker = _Ticker(screen)
    ended = "stopped after"
    try:
        yield ticker
        ended = "done in"
    finally:
        ticker.end(ended)


def _find_screen(shown: bool | None) -> _Screen | None:
    if shown is False:
        return None
    if _in_notebook():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal()
    return ProgressLines(sys.stderr.write) if shown and sys.stderr is not None else None


class _Ticker:
    """Shows the last progress again and again, so that no stage looks like a halt."""

    def __init__(self, screen: _Screen) -> None:
        self._screen: _Screen | None = screen
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._began_s = self._at_s = time.monotonic()
        self._last = Progress.of_stage(_FIRST)
        self._draw()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()

    def __call__(self, progress: Progress) -> None:
        new = progress.stage != self._last.stage
        self._last, self._at_s = progress, time.monotonic()
        # A log names every task, also one that is over before the next picture.
        if new or isinstance(self._screen, ProgressLines):
            self._draw()

    def end(self, how: str) -> None:
        self._over.set()
        self._thread.join()
        taken = duration(time.monotonic() - self._began_s).strip()
        self._tell(lambda screen: screen.end(f"{how} {taken}"))

    def _tick(self) -> None:
        while not self._over.wait(_DRAW_EVERY_S):
            self._draw()

    def _draw(self) -> None:
        now_s, last = time.monotonic(), self._last
        left_s = None if last.left_s is None else max(0.0, last.left_s - (now_s - self._at_s))
        now = replace(last, elapsed_s=now_s - self._began_s, left_s=left_s)
        self._tell(lambda screen: screen.show(now))

    def _tell(self, action: Callable[[_Screen], None]) -> None:
        with self._lock:
            if self._screen is not None:
                try:
                    action(self._screen)
                except (OSError, ValueError):
                    self._screen = None


class _Terminal:
    """Some lines on stderr that redraw themselves and are erased at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        screen = Console(stderr=True, markup=False, highlight=False)
        # What others print stays above; data that goes elsewhere is left alone.
        self._live = Live(
            console=screen,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start()

    def show(self, progress: Progress) -> None:
        self._live.update(picture(progress), refresh=True)

    def end(self, text: str) -> None:
        self._live.stop()


class _Notebook:
    """One output of the cell that is running, which updates itself through IPython."""

    def __init__(self) -> None:
        # As Optuna will, without the warning that a notebook lacks ipywidgets.
        with warnings.catch_warnings(), suppress(ImportError):
            warnings.simplefilter("ignore")
            importlib.import_module("tqdm.auto")
        self._handle: Any = None
        self._shown = ""

    def show(self, progress: Progress) -> None:
        bar = ""
        if progress.total:
            done = min(progress.done, progress.total)
            bar = f'<progress value="{done}" max="{progress.total}" style="{_BAR}"></progress>'
        self._update(bar, _describe(progress))

    def end(self, text: str) -> None:
        self._update("", text)

    def _update(self, bar: str, text: str) -> None:
        html = f"{bar}<span>{escape(text)}</span>"
        if html == self._shown:
            return
        self._shown = html
        data = {"text/plain": text, "text/html": html}
        if self._handle is not None:
            self._handle.update(data, raw=True)
            return
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Imports nothing."""
    shell_of = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = shell_of() if shell_of is not None else None
    return getattr(shell, "kernel", None) is not None


class ProgressLines:
    """Lines for logs: for every stage and finished task, and every few seconds of a search."""

    def __init__(
        self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_s = 0.0
        self._stage = self._line = ""
        self._open: dict[str, TaskProgress] = {}

    def show(self, progress: Progress) -> None:
        """Write what is new."""
        if not self._stage and progress.activity == _FIRST and progress.elapsed_s < _LINE_EVERY_S:
            return
        now_s, searching = self._clock(), progress.tasks_total > 0
        counted = searching or progress.total is not None
        stage = progress.stage if counted else progress.activity
        if stage != self._stage:
            self._stage = stage
            self._say(inert(progress.activity))
            if not searching:
                self._next_s = now_s + _LINE_EVERY_S
        if searching:
            self._tell_finished({task.label: task for task in progress.tasks})
        last = searching and progress.tasks_done == progress.tasks_total
        if now_s >= self._next_s or last:
            self._next_s = now_s + _LINE_EVERY_S
            self._say(summary(progress) if searching else _describe(progress))

    def _tell_finished(self, seen: Mapping[str, TaskProgress]) -> None:
        over = {label for label, task in seen.items() if task.stage == Stage.DONE}
        vanished = [task for label, task in self._open.items() if label not in seen]
        for task in (*(seen[label] for label in seen if label in over), *vanished):
            self._say(f"done: {format_finished(task)}")
        self._open = {label: task for label, task in seen.items() if label not in over}

    def _say(self, line: str) -> None:
        if line != self._line:
            self._line = line
            self._write(f"{line}\n")

    def end(self, text: str) -> None:
        """Write how the work ended."""
        if self._line:
            self._write(f"{text}\n")


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
    """`4 s`, `1 min 05 s`, `2 h 01 min`, 11 characters wide; a dash while unknown."""
    whole = -1 if seconds is None else max(0, int(seconds))
    minutes = whole // 60
    if minutes < 1:
        text = "-" if seconds is None else f"{whole} s"
    elif minutes < 60:
        text = f"{minutes} min {whole % 60:02d} s"
    else:
        text = f"{minutes // 60} h {minutes % 60:02d} min"
    return text.rjust(11)


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


def _describe(progress: Progress) -> str:
    """What the run does, since when and how long still, in one line."""
    text = f"{inert(progress.activity)}  {duration(progress.elapsed_s).strip()}"
    left_s = progress.left_s or 0.0
    return text if left_s < 1.0 else f"{text}, about {duration(left_s).strip()} left"
