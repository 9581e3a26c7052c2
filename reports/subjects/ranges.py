"""Ranges of sizes: which config serves which sizes, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import clean, count, percent, plot_text
from reports.source import RunData
from reports.task_data import TaskData
from reports.theme import BLUE, GREY, ORANGE, Drawing, draw_line, shorten
from reports.view import FigureView, Section, SectionSpec, Table, figure_view
from results_db.range_outcomes import RangePart, RangeTasks, find_loss, group_ranges

#: Most ranges that are drawn.
_DRAWN = 12
#: Series -> colour and symbol, in the order of the legend.
_SERIES = {
    "table": (BLUE, "circle"),
    "default config": (ORANGE, "square"),
    "fastest baseline": (GREY, "diamond"),
}


def build(data: RunData) -> Section | None:
    """A figure and a table of segments per range; None for a run without ranges."""
    groups = group_ranges(task.info for task in data.tasks)
    if not groups:
        return None
    tasks = {task.info.task_id: task for task in data.tasks}
    views = [_draw(number, group, tasks) for number, group in enumerate(groups[:_DRAWN])]
    left = len(groups) - len(views)
    paragraphs = [
        "Filled marks are sizes at which configs were searched or compared, open marks sizes that "
        "were held out: they had no part in the choice. Dotted lines part the configs.",
        *([f"{count(left, 'further range')} not drawn."] if left > 0 else []),
    ]
    return Section.of("ranges", "Ranges of sizes", paragraphs=paragraphs, figures=views)


def ranges(frame: pd.DataFrame, switches: list[int]) -> go.Figure:
    """Lines over the size, one for each of table, default config and fastest baseline.

    frame: one row per size and series: size, series, ratio (time over the least time at that size),
    held_out, label (hover text). switches: the last size of each segment but the last.
    """
    drawing = Drawing(
        320,
        xaxis={"title": {"text": "size"}, "type": "log"},
        yaxis={"title": {"text": "time ÷ fastest config's"}},
        shapes=[draw_line(size + 0.5, GREY, "dot") for size in switches],
    )
    for name, (colour, symbol) in _SERIES.items():
        rows = frame[frame["series"] == name].sort_values("size")
        if rows.empty:
            continue
        drawing.add(
            "scatter",
            "%{x}: %{y:.3f}<br>%{text}",
            x=rows["size"].tolist(),
            y=shorten(rows["ratio"]),
            text=[plot_text(label, 120) for label in rows["label"]],
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2},
            marker={
                "size": 8,
                "symbol": [f"{symbol}-open" if held else symbol for held in rows["held_out"]],
            },
        )
    return drawing.finish()


def _draw(number: int, group: RangeTasks, tasks: Mapping[int, TaskData]) -> FigureView:
    parts = group.list_parts()
    columns = ["size", "series", "ratio", "held_out", "label"]
    frame = pd.DataFrame(_points(group, parts, tasks), columns=columns)
    figure = ranges(frame, [part.high for part in parts[:-1]])
    rows = [
        (f"{p.low} to {p.high}", count(len(p.segment.sizes), "size"), clean(p.segment.config))
        for p in parts
    ]
    table = Table.of((group.place.dim, "measured", "config"), rows)
    return figure_view(f"range-{number}", figure, _caption(group, parts, frame), table)


def _points(
    group: RangeTasks, parts: Sequence[RangePart], tasks: Mapping[int, TaskData]
) -> Iterator[tuple[int, str, float, bool, str]]:
    for known, held_out in ((group.known, False), (group.held_out, True)):
        for outcome, info in known:
            config = next(p.segment.config for p in parts if p.low <= outcome.size <= p.high)
            task = tasks[info.task_id]
            loss = find_loss(outcome, config, task.trials)
            if loss is not None:
                yield outcome.size, "table", 1 + loss, held_out, config
            others = {"default config": task.over_default, "fastest baseline": task.over_baseline}
            for series, over in others.items():
                if over is not None:
                    yield outcome.size, series, over.ratio, held_out, series


def _caption(group: RangeTasks, parts: Sequence[RangePart], frame: pd.DataFrame) -> str:
    _, first = group.known[0]
    name = f"{first.key.kernel} {group.place.dim}={group.place.sizes} {group.fixed.key}".strip()
    configs = len({part.segment.config for part in parts})
    text = f"{name}: {count(configs, 'config')} from {count(len(group.known), 'measured size')}"
    rows = zip(frame["series"], frame["held_out"], frame["ratio"], frame["size"], strict=True)
    held = [(ratio - 1, size) for series, out, ratio, size in rows if out and series == "table"]
    if not held:
        return f"{text}; no size was held out."
    worst, size = max(held, key=lambda each: (each[0], -each[1]))
    mean = sum(loss for loss, _ in held) / len(held)
    return (
        f"{text}; at {count(len(held), 'size')} held out the table's config is "
        f"{percent(mean, 1)} slower than the fastest on average, at most {percent(worst, 1)} "
        f"(at {size})."
    )


SECTION = SectionSpec(build, after="leaderboard")
