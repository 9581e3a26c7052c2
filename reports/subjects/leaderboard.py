"""The leaderboard: per task the chosen config, against the fastest baseline and the default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
import plotly.graph_objects as go

from reports.outcome import VERDICTS, TaskOutcome, outcome
from reports.quantity import clean, duration, finite, percent, plot_text, span, times
from reports.source import RunData, TaskData
from reports.theme import BLUE, GREY, ORANGE, Drawing, draw_line, draw_whiskers, rows, shorten
from reports.view import (
    ConfigView,
    FigureView,
    ListingCell,
    Section,
    SectionSpec,
    Table,
    figure_view,
    foremost,
    script_json,
    view_config,
)
from results_db.spreadsheet import inert_cell
from search_spaces.records import canonical_json
from tuner.base.log_ratio import LogRatio, split_ratio

#: Heading and explanation of each column of numbers.
COLUMNS = {
    "baseline": (
        "Against fastest baseline",
        "time of the fastest correct baseline ÷ time, with its 95 % interval",
    ),
    "default": (
        "Against default",
        "time of the default config ÷ time, with its 95 % interval",
    ),
    "time": ("Time", "median of the confirmation, with its 95 % interval"),
    "roofline": (
        "Roofline",
        "share of the speed that the device's data sheet allows; and rates",
    ),
}
_MARKS = {"default": (BLUE, "circle", 0.02), "fastest baseline": (ORANGE, "diamond", 0.22)}


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """One task of the leaderboard."""

    task: TaskData
    result: TaskOutcome
    #: By key of `COLUMNS`.
    cells: dict[str, ListingCell]
    config: ConfigView | None


#: A speed-up of the chosen config: task, opponent (see `speedups`), name of the opponent, ratio.
Point: TypeAlias = tuple[str, str, str, LogRatio]


def build(data: RunData) -> Section | None:
    """The table of all tasks with a present device, and the figure of their speed-ups.

    A range is shown by the parts of it that one config each serves; programs get every size.
    """
    listed = [_row(task) for task in data.listed_tasks if task.state != "built"]
    if not listed:
        return None
    context = {
        "rows": listed,
        "columns": COLUMNS,
        "verdicts": [v for v in VERDICTS if any(row.result.standing == v for row in listed)],
        "devices": sorted({row.task.device for row in listed}),
        "csv": script_json(_csv([task for task in data.tasks if task.state != "built"])),
    }
    points = [found for row in listed if (found := _list_points(row.task, row.result))]
    views = [_draw(points)] if points else []
    return Section("leaderboard", "Leaderboard", "leaderboard.html.j2", context, views)


SECTION = SectionSpec(build, after="summary")


def _row(task: TaskData) -> LeaderboardRow:
    result = outcome(task)
    best, unconfirmed = result.baseline, result.median_us is not None and not result.confirmed
    return LeaderboardRow(
        task=task,
        result=result,
        cells={
            "time": _cell(
                duration(result.median_us),
                result.median_us,
                "unconfirmed" if unconfirmed else _format_interval(result.interval_us),
            ),
            "default": _ratio_cell(
                result.over_default, _format_named("default", result.default_us)
            ),
            "baseline": _ratio_cell(
                result.over_baseline, _format_named(best.name, best.median_us) if best else ""
            ),
            "roofline": _roofline(result),
        },
        config=view_config(task.info, result.config),
    )


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


def _roofline(result: TaskOutcome) -> ListingCell:
    digits = 1 if (result.roofline or 1.0) < 0.1 else 0
    return _cell(percent(result.roofline, digits), result.roofline, *result.rates)


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
        result = outcome(task)
        over, against = result.over_default, result.over_baseline
        times_us = {b.name: finite(b.median_us) for b in task.info.baselines}
        key = task.info.key
        table.append(
            [
                *(task.kernel, task.workload, key.device.name, key.device.target, result.verdict),
                *(result.median_us, result.default_us),
                *split_ratio(over),
                result.baseline.name if result.baseline else None,
                against.ratio if against else None,
                *(result.roofline, result.tflop_s, result.gb_s, result.ties),
                *(len(task.trials), len(task.failed), result.compiled),
                canonical_json(dict(result.config or {})),
                *(times_us.get(name) for name in names),
            ]
        )
    return [[inert_cell(value) for value in record] for record in table]


def _cell(text: str, value: float | None, *lines: str) -> ListingCell:
    sort = "" if value is None or not math.isfinite(value) else f"{value:.9g}"
    return ListingCell(text, lines=tuple(line for line in lines if line), sort=sort)


# -- the figure ------------------------------------------------------------------------------------
def _list_points(task: TaskData, result: TaskOutcome) -> list[Point]:
    points: list[Point] = []
    if result.over_default:
        points.append((task.label, "default", "default", result.over_default))
    if result.over_baseline and result.baseline:
        name = clean(result.baseline.name)
        points.append((task.label, "fastest baseline", name, result.over_baseline))
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
        drawing.add(
            "scatter",
            x=shorten(points["ratio"]),
            y=[tasks.index(task) + shift for task in points["task"]],
            text=[plot_text(name) for name in points["name"]],
            mode="markers",
            name=f"over the {opponent}",
            marker={"color": colour, "symbol": symbol, "size": 9},
            error_x=draw_whiskers(points, "ratio", colour),
            hovertemplate="%{x:.3f}x over %{text}<extra></extra>",
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
