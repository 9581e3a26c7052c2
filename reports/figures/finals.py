"""The distance of each finalist to the fastest, with intervals."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, Drawing, rows, shorten

#: Configs within this relative difference count as equally fast.
EPSILON = 0.01
_MARKS = {
    "winner": ("winner", BLUE, "diamond", 11),
    "tied": ("tied with the fastest", GREEN, "circle", 9),
    "slower": ("slower", ORANGE, "square", 8),
    "dropped": ("dropped early", GREY, "circle-open", 8),
}


def finals(frame: pd.DataFrame) -> go.Figure:
    """A forest plot: one row per finalist, a point and its interval on ln(time / reference's time).

    frame: one row per timed finalist, in the order to show: label, place (`winner`, `tied`,
    `slower`, `dropped`), ln, low, high (NaN where unknown), passes (samples it is made from).
    The band of ±1 % around the reference shows configs that count as equally fast.
    """
    labels = frame["label"].tolist()
    drawing = Drawing(
        96 + 44 * len(labels),
        **rows(labels),
        xaxis={"title": {"text": "ln(time ÷ time of the reference)"}, "tickformat": "~%"},
        shapes=[_shape("rect", -EPSILON, EPSILON), _shape("line", 0.0, 0.0)],
    )
    spots = pd.Series(range(len(frame)), index=frame.index)
    for place, (name, colour, symbol, size) in _MARKS.items():
        points = frame[frame["place"] == place]
        if points.empty:
            continue
        drawing.add(
            "scatter",
            x=shorten(points["ln"]),
            y=[round(spot + 0.12, 2) for spot in spots[points.index]],
            customdata=points["passes"].tolist(),
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": size, "line": {"width": 1.5}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": shorten((points["high"] - points["ln"]).fillna(0)),
                "arrayminus": shorten((points["ln"] - points["low"]).fillna(0)),
                "color": colour,
                "thickness": 1.5,
                "width": 3,
            },
            hovertemplate="%{x:.3%} after %{customdata} passes<extra></extra>",
        )
    return drawing.finish()


def _shape(kind: str, low: float, high: float) -> dict[str, object]:
    look: dict[str, object] = (
        {"fillcolor": GREY, "opacity": 0.14, "line": {"width": 0}}
        if kind == "rect"
        else {"line": {"color": GREY, "width": 1.5}}
    )
    return {
        "type": kind,
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        **look,
    }
