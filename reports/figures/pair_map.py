"""The best time for each pair of values of two parameters."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import FULL, GREY, ORANGE, PALE, STRONG, Drawing, shorten
from reports.quantity import plot_text

_MARKS = {"failed": ("x", ORANGE), "infeasible": ("square-x-open", GREY)}
#: Times from here on have the palest colour.
_PALEST = 2.0


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
