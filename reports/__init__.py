"""One HTML file per run that opens from disk: summary, environment, leaderboard, figures.

Plug-ins import `Section`, `SectionSpec`, `Table`, `figure_view` and `figures` from here. The heavy
libraries are loaded at the first use of a name, not when this package is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from reports import figures
    from reports.source import RunData
    from reports.task_data import TaskData
    from reports.view import FigureView, Section, SectionSpec, Table, figure_view
    from results_db import Store

__all__ = [
    "FigureView",
    "RunData",
    "Section",
    "SectionSpec",
    "Table",
    "TaskData",
    "figure_view",
    "figures",
    "plotly_figures",
    "render",
    "write",
]

__getattr__ = lazy_names(
    __name__,
    {
        "reports.source": ("RunData",),
        "reports.task_data": ("TaskData",),
        "reports.view": ("FigureView", "Section", "SectionSpec", "Table", "figure_view"),
    },
)

UNWRITABLE = "give another place with `tuner report --output FILE`, or free some space"


def render(
    store: Store,
    run_id: int | None = None,
    known: Mapping[int, TaskData] = MappingProxyType({}),
) -> str:
    """The report of a run (None: the newest) as one self-contained HTML text.

    Equal records give equal text. known: as for `write`. Raises `TunerError` when there is no such
    run.
    """
    from reports.page import render_page
    from reports.source import load

    return render_page(load(store, run_id, known=known))


def write(
    store: Store,
    run_id: int | None,
    path: Path,
    known: Mapping[int, TaskData] = MappingProxyType({}),
) -> Path:
    """Write the report of a run (None: the newest) to `path`; returns the path.

    Creates missing folders and replaces the file in one step. known: what `prepare` has returned,
    by task. Raises `TunerError` when there is no such run or the file cannot be written.
    """
    from search_spaces.atomic_file import write_output

    return write_output(Path(path), render(store, run_id, known).encode(), UNWRITABLE)


def prepare(store: Store, run: RunData, task_id: int, known: dict[int, TaskData]) -> None:
    """Draw a task of a run that goes on, and add it to what `write` knows.

    run: as `reports.source.load` has read it since it began. The first call also loads and compiles
    what all reports need.
    """
    from reports.page import render_built_in
    from reports.source import read_again
    from reports.subjects import build_sections

    data = read_again(store, run, task_id)
    if known:
        build_sections(data, ("tasks",))
    else:
        render_built_in(data)
    known.update({task.info.task_id: task for task in data.tasks})


def plotly_figures(
    store: Store, run_id: int | None = None, task_id: int | None = None
) -> dict[str, Any]:
    """The Plotly figures of a run's report (None: the newest run), by name.

    task_id: a task of the run; its figures lose the task's anchor from their names, and those of
    other tasks are left out. Raises `TunerError` when there is no such run.
    """
    from reports.page import list_figures
    from reports.source import load

    return list_figures(load(store, run_id), task_id)
