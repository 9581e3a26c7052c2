"""After how many samples the search knew enough of its trials."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, base, rows

# Five colours and eight patterns: no two of forty depths look alike.
_COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE)
_PATTERNS = ("", "/", "x", ".", "-", "\\", "+", "|")


def depths(frame: pd.DataFrame) -> go.Figure:
    """Stacked bars: one per task, the share of its trials that ended after so many samples.

    frame: one row per task and depth: task (in the order to show), samples (per trial), share.
    """
    tasks = list(dict.fromkeys(frame["task"]))
    figure = base(
        92 + 44 * len(tasks),
        **rows(tasks),
        barmode="stack",
        xaxis={
            "title": {"text": "share of the trials timed"},
            "range": [0, 1],
            "tickformat": "~%",
        },
    )
    for place, samples in enumerate(sorted(set(frame["samples"]))):
        shares = frame[frame["samples"] == samples]
        figure.add_bar(
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
    return figure
