"""The leaderboard: per task the chosen config, against the fastest baseline and the default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import clean, duration, finite, percent, plot_text, span, times
from reports.source import RunData
from reports.subjects.leaderboard.comparison_map import map_comparisons
from reports.task_data import VERDICTS, TaskData
from reports.theme import BLUE, GREY, ORANGE, Drawing, draw_line, draw_whiskers, rows, shorten
from reports.view import (
    FigureView,
    ListingCell,
    Section,
    SectionSpec,
    Table,
    figure_view,
    foremost,
    script_json,
)
from results_db.spreadsheet import inert_cell
from search_spaces.records import canonical_json
from tuner.base.log_ratio import LogRatio, split_ratio

_MARKS = {"default": (BLUE, "circle", 0.02), "fastest baseline": (ORANGE, "diamond", 0.22)}


#: A speed-up of the chosen config: task, opponent (see `speedups`), name of the opponent, ratio.
Point: TypeAlias = tuple[str, str, str, LogRatio]


def build(data: RunData) -> Section | None:
    """The table of all tasks with a present device, and the figure of their speed-ups.

    A range is shown by the parts of it that one config each serves; programs get every size.
    """
    tasks = [task for task in data.listed_tasks if task.state != "built"]
    if not tasks:
        return None
    context = {
        "rows": [(task, _cells(task)) for task in tasks],
        "verdicts": [v for v in VERDICTS if any(task.standing == v for task in tasks)],
        "devices": sorted({task.device for task in tasks}),
        "map": map_comparisons(tasks),
        "csv": script_json(_csv([task for task in data.tasks if task.state != "built"])),
    }
    points = [found for task in tasks if (found := _list_points(task))]
    views = [_draw(points)] if points else []
    return Section("leaderboard", "Leaderboard", "leaderboard.html.j2", context, views)


def _cells(task: TaskData) -> dict[str, ListingCell]:
    """By the columns of the template."""
    best, unconfirmed = task.baseline, task.median_us is not None and not task.confirmed
    interval = "unconfirmed" if unconfirmed else _format_interval(task.interval_us)
    named = _format_named(best.name, best.median_us) if best else ""
    digits = 1 if (task.roofline or 1.0) < 0.1 else 0
    return {
        "time": _cell(duration(task.median_us), task.median_us, interval),
        "default": _ratio_cell(task.over_default, _format_named("default", task.default_us)),
        "baseline": _ratio_cell(task.over_baseline, named),
        "roofline": _cell(percent(task.roofline, digits), task.roofline, *task.rates),
    }


def _format_interval(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return ""
    low, high = (duration(end) for end in ends)
    shared = low.endswith(high.rpartition(" ")[2])
    return f"{low.rpartition(' ')[0] if shared else low} to {high}"


def _format_named(name: str, median_us: float | None) -> str:
    return f"{name} {duration(median_us)}" if finite(median_us) is not None else ""


def _ratio_cell(over: LogRatio | None, opponent: str) -> ListingCell:
    return _cell(times(over), over.ratio if over else None, span(over), opponent)


def _csv(tasks: list[TaskData]) -> list[list[object]]:
    """Headings, then one record per task. Spreadsheets run no text as a formula."""
    names = list(dict.fromkeys(b.name for task in tasks for b in task.info.baselines))
    table: list[list[object]] = [
        [
            *("kernel", "workload", "device", "target", "verdict", "median_us", "default_us"),
            *("over_default", "over_default_low", "over_default_high", "fastest_baseline"),
            *("over_baseline", "roofline", "tflop_s", "gb_s", "tied", "trials", "failed"),
            *("compiled", "config"),
            *(f"{name}_us" for name in names),
        ]
    ]
    for task in tasks:
        against = task.over_baseline
        times_us = {b.name: finite(b.median_us) for b in task.info.baselines}
        key = task.info.key
        table.append(
            [
                *(task.kernel, task.workload, key.device.name, key.device.target, task.verdict),
                *(task.median_us, task.default_us),
                *split_ratio(task.over_default),
                task.baseline.name if task.baseline else None,
                against.ratio if against else None,
                *(task.roofline, task.tflop_s, task.gb_s, task.ties),
                *(len(task.trials), len(task.failed), task.device_compiles),
                canonical_json(dict(task.config or {})),
                *(times_us.get(name) for name in names),
            ]
        )
    return [[inert_cell(value) for value in record] for record in table]


def _cell(text: str, value: float | None, *lines: str) -> ListingCell:
    sort = "" if value is None or not math.isfinite(value) else f"{value:.9g}"
    return ListingCell(text, lines=tuple(line for line in lines if line), sort=sort)


# -- the figure ------------------------------------------------------------------------------------
def _list_points(task: TaskData) -> list[Point]:
    points: list[Point] = []
    if task.over_default:
        points.append((task.label, "default", "default", task.over_default))
    if task.over_baseline and task.baseline:
        name = clean(task.baseline.name)
        points.append((task.label, "fastest baseline", name, task.over_baseline))
    return points


def speedups_frame(points: Iterable[Point]) -> pd.DataFrame:
    """One row per task and opponent: task, opponent, name, ratio, low, high."""
    columns = ["task", "opponent", "name", "ratio", "low", "high"]
    frame = pd.DataFrame([(*texts, *split_ratio(over)) for *texts, over in points], columns=columns)
    return frame.astype({"low": float, "high": float})


def speedups(frame: pd.DataFrame) -> go.Figure:
    """Points with 95 % intervals on a logarithmic axis; above 1 the chosen config is faster.

    frame: one row per task and opponent: task (in the order to show), opponent
    (`default` or `fastest baseline`), name, ratio, low, high (NaN where unknown).
    """
    tasks = list(dict.fromkeys(frame["task"]))
    drawing = Drawing(
        96 + 50 * len(tasks),
        **rows(tasks),
        xaxis={"title": {"text": "speed-up"}, "type": "log", "ticksuffix": "x"},
        shapes=[draw_line(1, GREY)],
    )
    for opponent, (colour, symbol, shift) in _MARKS.items():
        points = frame[frame["opponent"] == opponent]
        if points.empty:
            continue
        drawing.dots(
            f"over the {opponent}",
            "%{x:.3f}x over %{text}",
            (colour, symbol, 9),
            x=shorten(points["ratio"]),
            y=[tasks.index(task) + shift for task in points["task"]],
            text=[plot_text(name) for name in points["name"]],
            error_x=draw_whiskers(points, "ratio", colour),
        )
    return drawing.finish()


def _draw(groups: Sequence[list[Point]]) -> FigureView:
    """Speed-ups over the default config and the fastest baseline, a group for each task."""
    shown, note = foremost(groups, lambda group: -min(over.value for *_, over in group))
    figure = speedups(speedups_frame(point for group in shown for point in group))
    points = [point for group in groups for point in group]
    table = Table.of(
        ("task", "against", "times faster", "95 % interval"),
        ((task, name, times(over), span(over) or "unknown") for task, _, name, over in points),
    )
    return figure_view("speedups", figure, _caption(points) + note, table)


def _caption(points: Iterable[Point]) -> str:
    known = [(over, task) for task, opponent, _, over in points if opponent == "default"]
    if not known:
        return "Speed-up over the fastest correct baseline, with 95 % intervals."
    best, best_task = max(known, key=lambda each: each[0].value)
    least, least_task = min(known, key=lambda each: each[0].value)
    if len(known) == 1:
        return f"The speed-up of {best_task} over its default config is {times(best)}."
    return (
        f"The largest speed-up over the default config is {times(best)} ({best_task}), the "
        f"smallest {times(least)} ({least_task}). A whisker that crosses 1 means that the "
        "two cannot be distinguished."
    )


SECTION = SectionSpec(build, after="summary")
