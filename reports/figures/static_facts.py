"""Static facts of cross-compiled binaries: registers, shared memory, spills."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, ORANGE, Drawing, rows

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
    layout: dict[str, Any] = {"annotations": []}
    for place, (_, title, _) in enumerate(_PANELS):
        axis = _name_axis(place)
        panel_rows = rows(groups, axis)
        layout["annotations"] += panel_rows.pop("annotations")
        top = 1 - place * (panel + gap) / plots
        layout[f"yaxis{axis}"] = panel_rows[f"yaxis{axis}"] | {
            "anchor": f"x{axis}",
            "domain": [round(max(top - panel / plots, 0), 6), round(top, 6)],
        }
        titled = {"anchor": f"y{axis}", "title": {"text": title}, "rangemode": "tozero"}
        layout[f"xaxis{axis}"] = titled
    drawing = Drawing(plots + 60, **layout, margin={"t": 12, "b": 48}, showlegend=False)
    for place, (column, title, colour) in enumerate(_PANELS):
        drawing.add(
            "box",
            x=frame[column].tolist(),
            y=[groups.index(group) + 0.12 for group in frame["group"]],
            xaxis=f"x{_name_axis(place)}",
            yaxis=f"y{_name_axis(place)}",
            width=0.36,
            orientation="h",
            name=title,
            boxpoints="outliers",
            line={"color": colour, "width": 1.5},
            marker={"size": 4, "opacity": 0.6},
            hovertemplate="%{x:,.4~g}<extra></extra>",
        )
    return drawing.finish()


def _name_axis(place: int) -> str:
    """The suffix of the axes of a panel."""
    return f"{place + 1}" if place else ""
