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
    boxes = []
    for place, (column, title, colour) in enumerate(_PANELS):
        axis = f"{place + 1}" if place else ""
        panel_rows = rows(groups, axis)
        layout["annotations"] += panel_rows.pop("annotations")
        top = 1 - place * (panel + gap) / plots
        layout[f"yaxis{axis}"] = panel_rows[f"yaxis{axis}"] | {
            "anchor": f"x{axis}",
            "domain": [round(max(top - panel / plots, 0), 6), round(top, 6)],
        }
        layout[f"xaxis{axis}"] = {
            "anchor": f"y{axis}",
            "title": {"text": title},
            "rangemode": "tozero",
        }
        boxes.append(
            {
                "x": frame[column].tolist(),
                "y": [groups.index(group) + 0.12 for group in frame["group"]],
                "xaxis": f"x{axis}",
                "yaxis": f"y{axis}",
                "width": 0.36,
                "orientation": "h",
                "name": title,
                "boxpoints": "outliers",
                "line": {"color": colour, "width": 1.5},
                "marker": {"size": 4, "opacity": 0.6},
                "hovertemplate": "%{x:,.4~g}<extra></extra>",
            }
        )
    drawing = Drawing(plots + 60, **layout, margin={"t": 12, "b": 48}, showlegend=False)
    for box in boxes:
        drawing.add("box", **box)
    return drawing.finish()
