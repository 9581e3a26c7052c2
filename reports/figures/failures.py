"""The failed trials of each task by status."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, rows

_LOOKS = {
    "constraints": (GREY, ""),
    "compile": (BLUE, "/"),
    "runtime": (ORANGE, "x"),
    "timeout": (PURPLE, "."),
    "correctness": (GREEN, "-"),
}


def failures(frame: pd.DataFrame) -> go.Figure:
    """Stacked bars: one per task, one pattern and colour per status.

    frame: one row per task and status: task (in the order to show), status, count.
    """
    tasks = list(dict.fromkeys(frame["task"]))
    drawing = Drawing(
        92 + 44 * len(tasks),
        **rows(tasks),
        barmode="stack",
        xaxis={"title": {"text": "failed trials"}, "rangemode": "tozero"},
    )
    for status, (colour, pattern) in _LOOKS.items():
        counts = frame[frame["status"] == status]
        if counts.empty:
            continue
        drawing.add(
            "bar",
            x=counts["count"].tolist(),
            y=[tasks.index(task) + 0.12 for task in counts["task"]],
            width=0.4,
            orientation="h",
            name=status,
            marker={
                "color": colour,
                "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.25},
            },
            hovertemplate=f"%{{x}} {status}<extra></extra>",
        )
    return drawing.finish()
