"""The map of two parameters: the best time for each pair of their values."""

from __future__ import annotations

import math
from itertools import product

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import factor, plot_text
from reports.source import TaskData, time_us
from reports.subjects.tasks.value_labels import label_values
from reports.theme import FULL, GREY, ORANGE, PALE, STRONG, Drawing, shorten
from reports.view import FigureView, Table, figure_view
from search_spaces.records import Status

_MARKS = {"failed": ("x", ORANGE), "infeasible": ("square-x-open", GREY)}
#: Times from here on have the palest colour.
_PALEST = 2.0


def pair_frame(task: TaskData, across: str, down: str) -> pd.DataFrame:
    """One row per pair of values of two varying parameters: across, down, best, mark, trials.

    best: the least time over that of the fastest trial. A pair without a timed trial is
    `infeasible` where all of its trials exceed the device's limits, `failed`, `not timed` or
    `not tried`.
    """
    labels = label_values(task.trials)
    times = [
        time_us(trial) if trial.status is Status.CORRECT else math.nan for trial in task.trials
    ]
    fastest = min((time for time in times if time > 0), default=1.0)
    cells: dict[tuple[str, str], list[int]] = {
        pair: [] for pair in product(labels[across].shown, labels[down].shown)
    }
    for place, pair in enumerate(zip(labels[across].of, labels[down].of, strict=True)):
        cells[pair].append(place)
    rows = []
    for pair, places in cells.items():
        best = min((times[at] for at in places if times[at] > 0), default=math.nan)
        mark = "" if best > 0 else _mark_untimed({task.trials[at].status for at in places})
        rows.append((*pair, best / fastest, mark, len(places)))
    columns = ["across", "down", "best", "mark", "trials"]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"best": float, "trials": int})


def _mark_untimed(statuses: set[Status]) -> str:
    if not statuses:
        return "not tried"
    if Status.CORRECT in statuses:
        return "not timed"
    return "infeasible" if statuses == {Status.CONSTRAINTS} else "failed"


def pair_map(frame: pd.DataFrame, across: str, down: str) -> go.Figure:
    """A heat map of time over the fastest trial's time, with a mark where nothing was timed.

    frame: one row per cell, in the order to show: across and down (values of the parameters
    of these names), best (least time / fastest time, >= 1; NaN where nothing was timed), mark
    (`failed`, `infeasible`, empty), trials (how many).
    """
    columns, lines = ({v: at for at, v in enumerate(frame[n].unique())} for n in ("across", "down"))
    x, y = (
        [places[value] for value in frame[name]]
        for name, places in (("across", columns), ("down", lines))
    )
    drawing = Drawing(
        110 + 36 * len(lines),
        xaxis=_axis(across, columns, [-0.5, len(columns) - 0.5]),
        yaxis=_axis(down, lines, [len(lines) - 0.5, -0.5]),
    )
    best = [None if value != value else shorten([value])[0] for value in frame["best"]]
    drawing.add(
        "heatmap",
        x=x,
        y=y,
        z=best,
        text=["" if value is None else f"{value:.2f}x" for value in best],
        texttemplate="%{text}",
        textfont={"color": STRONG},
        customdata=frame["trials"].tolist(),
        colorscale=[[0, FULL], [1, PALE]],
        zmin=1,
        zmax=_PALEST,
        showscale=False,
        xgap=2,
        ygap=2,
        hoverongaps=False,
        hovertemplate="%{text}, trials: %{customdata}<extra></extra>",
    )
    for mark, (symbol, colour) in _MARKS.items():
        places = [at for at, found in enumerate(frame["mark"]) if found == mark]
        if not places:
            continue
        drawing.add(
            "scatter",
            x=[x[at] for at in places],
            y=[y[at] for at in places],
            mode="markers",
            name=mark,
            showlegend=True,
            marker={"symbol": symbol, "color": colour, "size": 10},
            hovertemplate=f"{mark}<extra></extra>",
        )
    return drawing.finish()


def _axis(name: str, places: dict[str, int], span: list[float]) -> dict[str, object]:
    return {
        "title": {"text": plot_text(name, 28)},
        "tickvals": list(places.values()),
        "ticktext": [plot_text(value, 14) for value in places],
        "range": span,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def view_pair_map(task: TaskData, across: str, down: str) -> FigureView:
    """The map of two varying parameters."""
    frame = pair_frame(task, across, down)
    counts = frame["mark"].value_counts()
    rest = "".join(f", {counts[mark]} {mark}" for mark in sorted(counts.index) if mark)
    caption = (
        f"The best time ÷ the fastest by {across} and {down}, the parameters with the largest "
        f"effect; of {len(frame)} pairs {counts.get('', 0)} are timed{rest}."
    )
    cells = [mark or factor(best) for best, mark in zip(frame["best"], frame["mark"], strict=True)]
    columns, lines = list(frame["across"].unique()), list(frame["down"].unique())
    table = Table.of(
        (down, *(f"{across}={value}" for value in columns)),
        ((value, *cells[at :: len(lines)]) for at, value in enumerate(lines)),
    )
    figure = pair_map(frame, across, down)
    return figure_view(f"{task.slug}-map", figure, caption, table)
