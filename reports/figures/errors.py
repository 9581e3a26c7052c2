"""The error of each trial against its time."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, shorten, thin
from reports.quantity import plot_text

#: Looks of the values of a parameter; a figure has at most as many.
LOOKS = (
    (BLUE, "circle"),
    (GREEN, "diamond"),
    (PURPLE, "square"),
    (GREY, "cross"),
    (ORANGE, "triangle-up"),
)


def errors(frame: pd.DataFrame, parameter: str, tolerance: float | None = None) -> go.Figure:
    """A dot per trial, coloured by the value of one parameter.

    frame: one row per timed trial with an error: value (of the parameter of that name, in the
    order to show), median_us, error (||out - ref|| / ||ref||, > 0), trial (number).
    tolerance: the largest error that counts as correct, for a line.
    """
    drawing = Drawing(
        300,
        xaxis={"title": {"text": "median time (µs)"}, "type": "log"},
        yaxis={"title": {"text": "relative error"}, "type": "log", "exponentformat": "e"},
    )
    for (colour, symbol), value in zip(LOOKS, frame["value"].unique(), strict=False):
        group = thin(frame[frame["value"] == value], 1000)
        drawing.add(
            "scatter",
            x=shorten(group["median_us"]),
            y=shorten(group["error"]),
            customdata=group["trial"].tolist(),
            mode="markers",
            name=plot_text(f"{parameter}={value}", 40),
            showlegend=True,
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.7},
            hovertemplate="trial %{customdata}: %{x:,.4~g} µs, error %{y:.3~g}<extra></extra>",
        )
    if tolerance and len(frame):
        drawing.add(
            "scatter",
            x=shorten([frame["median_us"].min(), frame["median_us"].max()]),
            y=shorten([tolerance, tolerance]),
            mode="lines",
            name="tolerance",
            line={"color": ORANGE, "width": 1.5, "dash": "dash"},
            hovertemplate="tolerance: %{y:.3~g}<extra></extra>",
        )
    return drawing.finish()
