"""A folder with the report of every run, and an index of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import reports
from reports.page import Head, render_sections
from reports.quantity import clean, factor
from reports.task_data import TaskData
from reports.view import ListingCell, ListingRow, list_section
from results_db import Store
from results_db.stored_records import RunInfo, RunStatus, TaskInfo
from search_spaces.atomic_file import write_output
from tuner.base.log_ratio import LogRatio
from tuner.base.statistics import geometric_mean

_HEADINGS = (
    "Run", "Tag", "Status", "Started", "Tasks with a winner", "Against fastest baseline",
    "Against default",
)  # fmt: skip


def write_reports(store: Store, folder: Path) -> Path:
    """Write the reports that are missing or older than the end of their run; then the index.

    Returns the path of the index. Raises `TunerError` when a file cannot be written.
    """
    for run in store.runs(limit=None):
        path = folder / name_report(run)
        if not _is_current(path, run):
            reports.write(store, run.run_id, path)
    return _write_index(store, folder)


def add_report(
    store: Store,
    run_id: int,
    folder: Path,
    known: Mapping[int, TaskData] = MappingProxyType({}),
) -> Path:
    """Write the report of one run into the folder, and the index; returns the index's path.

    known: as for `reports.write`.
    """
    reports.write(store, run_id, folder / name_report(store.run(run_id)), known)
    return _write_index(store, folder)


def _write_index(store: Store, folder: Path) -> Path:
    """Write the list of all runs by campaign, with links to the reports in the folder."""
    runs = store.runs(limit=None)
    campaigns = dict.fromkeys(run.campaign for run in runs)
    sections = []
    for place, campaign in enumerate(campaigns):
        own = (run for run in runs if run.campaign == campaign)
        rows = [_list_run(folder, run, store.tasks(run.run_id)) for run in own]
        sections.append(list_section(f"campaign-{place}", clean(campaign), _HEADINGS, rows))
    words = (
        "A ratio is the geometric mean over a run's tasks; above 1, the chosen configs are faster."
    )
    path = folder / "index.html"
    page = render_sections(Head("Reports", footer=words), sections, figures=False)
    return write_output(path, page.encode(), reports.UNWRITABLE)


def name_report(run: RunInfo) -> str:
    """The file name of a run's report: `nightly-12.html`."""
    campaign = re.sub(r"[^A-Za-z0-9_-]+", "-", run.campaign).strip("-")[:80]
    return f"{campaign or 'run'}-{run.run_id}.html"


def _is_current(path: Path, run: RunInfo) -> bool:
    """Whether the file was written after the end of the run, which may be resumed if it failed."""
    ended = run.finished_at
    if run.status != RunStatus.FINISHED or ended is None or not path.is_file():
        return False
    return path.stat().st_mtime >= ended.timestamp()


def _list_run(folder: Path, run: RunInfo, infos: Iterable[TaskInfo]) -> ListingRow:
    name = name_report(run)
    tasks = [task for info in infos if (task := TaskData(info, (), "", "")).confirmed]
    return ListingRow(
        (
            ListingCell(f"run {run.run_id}", href=name if (folder / name).is_file() else ""),
            ListingCell(run.tag or ""),
            ListingCell(run.status),
            ListingCell(f"{run.started_at:%Y-%m-%d %H:%M}"),
            ListingCell(f"{len(tasks)}"),
            ListingCell(_average(task.over_baseline for task in tasks)),
            ListingCell(_average(task.over_default for task in tasks)),
        )
    )


def _average(ratios: Iterable[LogRatio | None]) -> str:
    known = [each.ratio for each in ratios if each is not None]
    return factor(geometric_mean(known)) if known else ""
