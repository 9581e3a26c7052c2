"""Progress of a call of `tune`: a line on a terminal, a display in a notebook, lines elsewhere.

- `progress_thread.py` repeats the last progress every second, so that no wait is silent.
- `terminal.py`, `notebook.py` and `lines.py` show it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.display.lines import LineScreen
from tuner.display.notebook import Notebook, in_notebook
from tuner.display.progress_thread import Screen, Ticker
from tuner.display.terminal import TerminalLine
from tuner.progress import ProgressCallback

__all__ = ["show_progress"]


@contextmanager
def show_progress(progress: bool | None) -> Iterator[ProgressCallback | None]:
    """A callback that shows progress until the block ends; None where nothing is shown.

    progress: None shows it in a notebook and on a terminal; True also elsewhere, as plain lines on
    stderr; False never.
    """
    screen = _screen(progress)
    if screen is None:
        yield None
        return
    with Ticker(screen) as ticker:
        yield ticker


def _screen(progress: bool | None) -> Screen | None:
    if progress is False:
        return None
    if in_notebook():
        return Notebook()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalLine(sys.stderr)
    return LineScreen(sys.stderr) if progress and sys.stderr is not None else None
