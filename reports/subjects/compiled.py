"""Variants that were only compiled: static facts of their binaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import NOTHING, clean, count, join_words, size
from reports.source import RunData
from reports.task_data import TaskData, compiled
from reports.theme import BLUE, GREEN, ORANGE, Drawing, draw_boxes, rows
from reports.view import FigureView, ListingCell, Section, SectionSpec, Table, figure_view
from results_db.stored_records import TrialRecord

#: Each task with its cells, one per heading.
Rows: TypeAlias = list[tuple[TaskData, list[ListingCell]]]

_PANELS = (
    ("registers", "registers per thread", BLUE),
    ("shared_kib", "shared memory per block (KiB)", GREEN),
    ("spill_bytes", "spilled bytes per thread", ORANGE),
)


def build(data: RunData) -> Section | None:
    """A table and a figure of build-only tasks; None for a run without any."""
    tasks = [task for task in data.tasks if task.state == "built"]
    if not tasks:
        return None
    listed, frame = [(task, _cells(task)) for task in tasks], static_frame(tasks)
    views = [_draw(listed, frame)] if len(frame) else []
    return Section("compiled", "Compiled, not timed", "compiled.html.j2", {"rows": listed}, views)


def static_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per compiled variant: group, registers, shared_kib, spill_bytes."""
    found = [
        (
            clean(f"{task.kernel} for {task.info.key.device.target}"),
            trial.registers,
            None if trial.shared_bytes is None else trial.shared_bytes / 1024,
            trial.spill_bytes,
        )
        for task in tasks
        for trial in task.trials
        if trial.registers is not None
    ]
    return pd.DataFrame(found, columns=["group", "registers", "shared_kib", "spill_bytes"])


def static_facts(frame: pd.DataFrame) -> go.Figure:
    """Three stacked panels of horizontal boxes, one box per group.

    frame: one row per compiled variant: group (in the order to show), registers,
    shared_kib, spill_bytes (NaN where unknown).
    """
    groups = list(dict.fromkeys(frame["group"]))
    panel, gap = 26 + 44 * len(groups), 62
    plots = 3 * panel + 2 * gap
    layout: dict[str, Any] = {"annotations": []}
    for place, (_, title, _) in enumerate(_PANELS):
        axis = _name_axis(place)
        panel_rows = rows(groups, axis)
        layout["annotations"] += panel_rows.pop("annotations")
        top = 1 - place * (panel + gap) / plots
        layout[f"yaxis{axis}"] = panel_rows[f"yaxis{axis}"] | {
            "anchor": f"x{axis}",
            "domain": [round(max(top - panel / plots, 0), 6), round(top, 6)],
        }
        titled = {"anchor": f"y{axis}", "title": {"text": title}, "rangemode": "tozero"}
        layout[f"xaxis{axis}"] = titled
    drawing = Drawing(plots + 60, **layout, margin={"t": 12, "b": 48}, showlegend=False)
    places = [groups.index(group) for group in frame["group"]]
    for place, (column, title, colour) in enumerate(_PANELS):
        drawing.add(
            "box",
            "%{x:,.4~g}",
            **draw_boxes(frame[column].tolist(), places, title, colour),
            xaxis=f"x{_name_axis(place)}",
            yaxis=f"y{_name_axis(place)}",
        )
    return drawing.finish()


def _name_axis(place: int) -> str:
    """The suffix of the axes of a panel."""
    return f"{place + 1}" if place else ""


def _cells(task: TaskData) -> list[ListingCell]:
    known = [trial for trial in task.trials if trial.registers is not None]
    return [
        ListingCell(task.info.key.device.target),
        ListingCell(sum(map(compiled, task.trials))),
        ListingCell(sum(bool(trial.verified_by) for trial in task.correct)),
        ListingCell(len(task.failed)),
        _spread((trial.registers for trial in known), "{:g}".format),
        _spread((trial.shared_bytes for trial in known), size),
        ListingCell(sum(map(_is_spilling, known))),
    ]


def _is_spilling(trial: TrialRecord) -> bool:
    return trial.registers is not None and (trial.spill_bytes or 0) > 0


def _spread(values: Iterable[int | None], shown: Callable[[float], str]) -> ListingCell:
    """The median, and the range below it."""
    known = [value for value in values if value is not None]
    if not known:
        return ListingCell(NOTHING, lines=("",), sort="")
    ends = f"{shown(min(known))} to {shown(max(known))}"
    return ListingCell(shown(median(known)), lines=(ends,), sort=f"{median(known)}")


def _draw(listed: Rows, frame: pd.DataFrame) -> FigureView:
    table = Table.of(
        ("task", "median registers", "range", "median shared", "range", "spilling"),
        (
            (task.label, *(f"{text}" for cell in cells[4:] for text in (cell.text, *cell.lines)))
            for task, cells in listed
        ),
    )
    trials = [trial for task, _ in listed for trial in task.trials]
    spilling = sum(map(_is_spilling, trials))
    targets = sorted({task.info.key.device.target for task, _ in listed})
    total = count(sum(map(compiled, trials)), "variant")
    caption = f"{total} compiled for {join_words(targets)}; " + (
        f"{spilling} of them spill registers to memory, which usually costs time."
        if spilling
        else "none of them spills registers to memory."
    )
    return figure_view("static-facts", static_facts(frame), caption, table)


SECTION = SectionSpec(build, after="ranges")
