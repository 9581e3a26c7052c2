"""The confirmed times of workloads over runs, with steps and breaks."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, LABEL, ORANGE, PURPLE, Drawing, shorten
from reports.quantity import plot_text

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
_SYMBOLS = {"": "circle", "faster": "triangle-down", "slower": "triangle-up"}


def history(frame: pd.DataFrame) -> go.Figure:
    """One line per workload, broken where results cannot be compared; a triangle where a step is.

    frame: one row per result, oldest first: series (label of the line), segment (a number that
    changes at each break), started (date and time), relative (time over that of the newest
    result), step (`faster`, `slower` or empty), label (hover text).
    """
    drawing = Drawing(
        360,
        xaxis={"type": "date"},
        yaxis={"title": {"text": "time ÷ newest"}, "type": "log"},
        shapes=[
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": moment,
                "x1": moment,
                "line": {"color": GREY, "width": 1, "dash": "dot"},
            }
            for moment in _find_breaks(frame)
        ],
    )
    for number, (series, rows) in enumerate(frame.groupby("series", sort=False)):
        for place, (_, part) in enumerate(rows.groupby("segment", sort=False)):
            steps = part["step"].tolist()
            drawing.add(
                "scatter",
                x=[moment.isoformat() for moment in part["started"]],
                y=shorten(part["relative"]),
                text=[plot_text(label, 2 * LABEL) for label in part["label"]],
                mode="lines+markers",
                name=plot_text(f"{series}", LABEL),
                legendgroup=f"{number}",
                showlegend=place == 0,
                line={"color": _COLOURS[number % len(_COLOURS)]},
                marker={
                    "symbol": [_SYMBOLS[step] for step in steps],
                    "size": [13 if step else 6 for step in steps],
                },
                hovertemplate="%{y:.3f}<br>%{text}<extra></extra>",
            )
    return drawing.finish()


def _find_breaks(frame: pd.DataFrame) -> list[str]:
    """When the first result behind each break was started."""
    first = frame.groupby(["series", "segment"], sort=False)["started"].first()
    moments = first[first.index.get_level_values("segment") > 0]
    return sorted({moment.isoformat() for moment in moments})
