"""What every process of a run did when."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing
from reports.quantity import plot_text

_LOOKS = {
    "start": (GREY, ""),
    "import": (GREY, "/"),
    "build": (BLUE, ""),
    "job": (ORANGE, ""),
    "verify": (ORANGE, "/"),
    "timing": (GREEN, ""),
    "strategy": (PURPLE, ""),
    "database": (PURPLE, "/"),
    "output": (BLUE, "/"),
    "end": (GREY, "x"),
}
#: Of spans in categories that this module does not know.
_OTHER = (GREY, ".")
_ROW_PX = 20


def timeline(frame: pd.DataFrame) -> go.Figure:
    """One lane per process, a bar per span; a span inside another one is a row below it.

    frame: one row per span: lane (in the order to show), start_s, duration_s, depth (0: in no other
    span of its lane), category, name.
    """
    lanes = list(dict.fromkeys(frame["lane"]))
    deepest = frame.groupby("lane", sort=False)["depth"].max()
    tops, rows = {}, 0
    for lane in lanes:
        tops[lane] = rows + 1  # the row above holds the label
        rows = tops[lane] + int(deepest[lane]) + 1
    drawing = Drawing(
        96 + _ROW_PX * rows,
        barmode="overlay",
        xaxis={"title": {"text": "time since the first span (s)"}},
        yaxis={
            "range": [rows + 0.2, -0.2],
            "showticklabels": False,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        annotations=[_label(lane, tops[lane]) for lane in lanes],
        # A name that does not fit into its bar is shown on hover only.
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    for category in [*_LOOKS, *sorted(set(frame["category"]) - set(_LOOKS))]:
        spans = frame[frame["category"] == category]
        if not spans.empty:
            drawing.add("bar", **_bars(category, spans, tops))
    return drawing.finish()


def _bars(category: str, spans: pd.DataFrame, tops: dict[str, int]) -> dict[str, Any]:
    colour, pattern = _LOOKS.get(category, _OTHER)
    names = [plot_text(name, 60) for name in spans["name"]]
    places = zip(spans["lane"], spans["depth"], strict=True)
    return {
        "x": spans["duration_s"].round(4).tolist(),
        "base": spans["start_s"].round(4).tolist(),
        "y": [tops[lane] + int(depth) + 0.5 for lane, depth in places],
        "width": 0.86,
        "orientation": "h",
        "name": plot_text(category, 20),
        "text": names,
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "textfont": {"size": 10},
        "marker": {
            "color": colour,
            "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.25},
        },
        "hovertemplate": "%{text}<br>%{x:.3f} s from %{base:.3f} s<extra></extra>",
    }


def _label(lane: str, top: int) -> dict[str, Any]:
    return {
        "text": plot_text(lane, 64),
        "y": top,
    }
