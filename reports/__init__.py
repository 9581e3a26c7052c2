"""One HTML file per run that opens from disk: summary, environment, leaderboard, figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tuner.import_names import lazy_names

if TYPE_CHECKING:
    from reports.source import ReportSource

__all__ = ["render", "write"]

__getattr__ = lazy_names(__name__, {})

_UNWRITABLE = "give another place with `tuner report --output FILE`, or free some space"


def render(store: ReportSource, run_id: int | None = None) -> str:
    """The report of a run (None: the newest) as one self-contained HTML text.

    Equal records give equal text. Raises `TunerError` when there is no such run.
    """
    from reports.page import render_page
    from reports.source import load

    return render_page(load(store, run_id))


def write(store: ReportSource, run_id: int | None, path: Path) -> Path:
    """Write the report of a run (None: the newest) to `path`, whole or not at all.

    Missing folders are made. Raises `TunerError` when there is no such run or the file cannot be
    written.
    """
    from search_spaces.atomic_file import write_output

    return write_output(Path(path), render(store, run_id).encode(), _UNWRITABLE)
