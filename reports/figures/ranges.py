"""The time of what a table launches over the sizes of a range, against the fastest config there."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, Drawing, shorten
from reports.quantity import plot_text

#: Series -> colour and symbol, in the order of the legend.
_SERIES = {
    "table": (BLUE, "circle"),
    "default config": (ORANGE, "square"),
    "fastest baseline": (GREY, "diamond"),
}


def ranges(frame: pd.DataFrame, switches: list[int]) -> go.Figure:
    """Lines over the size, one for each of table, default config and fastest baseline.

    frame: one row per size and series: size, series, ratio (time over the least time at that size),
    held_out, label (hover text). switches: the last size of each segment but the last.
    """
    drawing = Drawing(
        320,
        xaxis={"title": {"text": "size"}, "type": "log"},
        yaxis={"title": {"text": "time ÷ fastest config's"}},
        shapes=[
            {
                "type": "line",
                "yref": "y domain",
                "x0": size + 0.5,
                "x1": size + 0.5,
                "y0": 0,
                "y1": 1,
                "line": {"color": GREY, "width": 1, "dash": "dot"},
            }
            for size in switches
        ],
    )
    for name, (colour, symbol) in _SERIES.items():
        rows = frame[frame["series"] == name].sort_values("size")
        if rows.empty:
            continue
        drawing.add(
            "scatter",
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
            hovertemplate="%{x}: %{y:.3f}<br>%{text}<extra></extra>",
        )
    return drawing.finish()
