"""Speed-up of each task's winner, with its interval."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, Drawing, rows, shorten
from reports.quantity import plot_text

_MARKS = {"default": (BLUE, "circle", 0.02), "fastest baseline": (ORANGE, "diamond", 0.22)}


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
        shapes=[
            {
                "type": "line",
                "yref": "paper",
                "x0": 1,
                "x1": 1,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "line": {"color": GREY, "width": 1.5},
            }
        ],
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
            error_x={
                "type": "data",
                "symmetric": False,
                "array": shorten((points["high"] - points["ratio"]).fillna(0)),
                "arrayminus": shorten((points["ratio"] - points["low"]).fillna(0)),
                "color": colour,
                "thickness": 1.5,
                "width": 3,
            },
            hovertemplate="%{x:.3f}x over %{text}<extra></extra>",
        )
    return drawing.finish()
