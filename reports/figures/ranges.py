"""The time of what a table launches over the sizes of a range, against the fastest config there."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, base, shorten
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
    figure = base(
        320,
        xaxis={"title": {"text": "size"}, "type": "log"},
        yaxis={"title": {"text": "time ÷ fastest config's"}},
    )
    for name, (colour, symbol) in _SERIES.items():
        rows = frame[frame["series"] == name].sort_values("size")
        if rows.empty:
            continue
        figure.add_scatter(
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
    for size in switches:
        figure.add_vline(x=size + 0.5, line={"color": GREY, "width": 1, "dash": "dot"})
    return figure
