"""The spread of the samples of each trial."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, Drawing, rows, shorten

NOISY, SUSPECT = 0.02, 0.10


def noise(frame: pd.DataFrame) -> go.Figure:
    """One box per task over its trials' inter-quartile range / median, on a logarithmic axis.

    frame: one row per trial: task (in the order to show), spread (a fraction, > 0).
    The lines mark `noisy` (2 %) and `suspect` (10 %).
    """
    tasks = list(dict.fromkeys(frame["task"]))
    row_layout = rows(tasks)
    limits = ((NOISY, "noisy", GREY), (SUSPECT, "suspect", ORANGE))
    row_layout["annotations"] += [
        {
            "text": word,
            "x": math.log10(limit),
            "xref": "x",
            "xanchor": "center",
            "yref": "paper",
            "y": 1,
            "font": {"color": colour},
        }
        for limit, word, colour in limits
    ]
    drawing = Drawing(
        92 + 46 * len(tasks),
        **row_layout,
        showlegend=False,
        xaxis={
            "title": {"text": "IQR ÷ median of a trial's samples"},
            "type": "log",
            "tickformat": "~%",
        },
        shapes=[_draw_limit(limit, colour) for limit, _, colour in limits],
    )
    drawing.add(
        "box",
        x=shorten(frame["spread"]),
        y=[tasks.index(task) + 0.12 for task in frame["task"]],
        width=0.36,
        orientation="h",
        name="trials",
        boxpoints="outliers",
        line={"color": BLUE, "width": 1.5},
        marker={"size": 4, "opacity": 0.6},
        hovertemplate="%{x:.2%}<extra></extra>",
    )
    return drawing.finish()


def _draw_limit(limit: float, colour: str) -> dict[str, Any]:
    return {
        "type": "line",
        "yref": "paper",
        "x0": limit,
        "x1": limit,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }
