"""The number of samples after which the search ended its trials."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, rows

# Five colours and eight patterns distinguish forty numbers of samples.
_COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE)
_PATTERNS = ("", "/", "x", ".", "-", "\\", "+", "|")


def depths(frame: pd.DataFrame) -> go.Figure:
    """Stacked bars, one per task: the shares of its trials by number of samples.

    frame: one row per task and number of samples: task (in the order to show), samples (per
    trial), share.
    """
    tasks = list(dict.fromkeys(frame["task"]))
    drawing = Drawing(
        92 + 44 * len(tasks),
        **rows(tasks),
        barmode="stack",
        xaxis={
            "title": {"text": "share of timed trials"},
            "range": [0, 1],
            "tickformat": "~%",
        },
    )
    for place, samples in enumerate(sorted(set(frame["samples"]))):
        shares = frame[frame["samples"] == samples]
        drawing.add(
            "bar",
            x=shares["share"].round(6).tolist(),
            y=[tasks.index(task) + 0.12 for task in shares["task"]],
            width=0.4,
            orientation="h",
            name=f"{samples} sample" + "s" * (samples != 1),
            marker={
                "color": _COLOURS[place % len(_COLOURS)],
                "pattern": {
                    "shape": _PATTERNS[place % len(_PATTERNS)],
                    "fillmode": "overlay",
                    "size": 6,
                    "solidity": 0.25,
                },
            },
            hovertemplate=f"%{{x:.1%}} after {samples}<extra></extra>",
        )
    return drawing.finish()
