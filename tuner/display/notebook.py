"""One output of a notebook cell that updates itself, through IPython."""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import suppress
from html import escape
from typing import Any

from tuner.progress import Progress

_BAR = "display:inline-block;width:12em;vertical-align:middle;margin-right:0.8em"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Imports nothing."""
    shell_of = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = shell_of() if shell_of is not None else None
    return getattr(shell, "kernel", None) is not None


def _import_tqdm() -> None:
    """Import tqdm, as Optuna will, without its warning that a notebook lacks ipywidgets."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


class Notebook:
    """A `Screen` in the output of the cell that is running."""

    def __init__(self) -> None:
        _import_tqdm()
        self._handle: Any = None
        self._shown = ""

    def show(self, progress: Progress, text: str) -> None:
        bar = ""
        if progress.total:
            done = min(progress.done, progress.total)
            bar = f'<progress value="{done}" max="{progress.total}" style="{_BAR}"></progress>'
        self._update(f"{bar}<span>{escape(text)}</span>", text)

    def end(self, text: str) -> None:
        self._update(f"<span>{escape(text)}</span>", text)

    def _update(self, html: str, text: str) -> None:
        if html == self._shown:
            return
        self._shown = html
        data = {"text/plain": text, "text/html": html}
        if self._handle is not None:
            self._handle.update(data, raw=True)
            return
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
