"""Static facts of cross-compiled binaries: registers, shared memory, spills."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures.theme import BLUE, GREEN, ORANGE, base, rows

_PANELS = (
    ("registers", "registers per thread", BLUE),
    ("shared_kib", "shared memory per block (KiB)", GREEN),
    ("spill_bytes", "spilled bytes per thread", ORANGE),
)


def static_facts(frame: pd.DataFrame) -> go.Figure:
    """Three stacked panels of horizontal boxes, one box per group.

    frame: one row per compiled variant: group (in the order to show), registers,
    shared_kib, spill_bytes (NaN where unknown).
    """
    groups = list(dict.fromkeys(frame["group"]))
    panel, gap = 26 + 44 * len(groups), 62
    plots = 3 * panel + 2 * gap
    figure = make_subplots(rows=3, cols=1, vertical_spacing=gap / plots, figure=base(300))
    for row, (column, title, colour) in enumerate(_PANELS, start=1):
        figure.add_box(
            x=frame[column].tolist(),
            y=[groups.index(group) + 0.12 for group in frame["group"]],
            width=0.36,
            orientation="h",
            name=title,
            boxpoints="outliers",
            line={"color": colour, "width": 1.5},
            marker={"size": 4, "opacity": 0.6},
            hovertemplate="%{x:,.4~g}<extra></extra>",
            row=row,
            col=1,
        )
        figure.update_xaxes(title={"text": title}, rangemode="tozero", row=row, col=1)
    for axis in ("", "2", "3"):
        layout = rows(groups, axis)
        figure.update_layout({f"yaxis{axis}": layout[f"yaxis{axis}"]})
        for label in layout["annotations"]:
            figure.add_annotation(label)
    return figure.update_layout(height=plots + 60, margin={"t": 12, "b": 48}, showlegend=False)
