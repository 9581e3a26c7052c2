"""The common style of all figures: colours, layout, a light and a dark template.

The Okabe-Ito colours are distinguishable with any colour vision; series also differ by symbol or
pattern. The page replaces colours by `DARK_OF` in the dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import plot_text

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#007a5a", "#a8527f", "#7a828c"
STRONG = "#1f242b"
#: The ends of a colour scale on which `STRONG` text can be read.
FULL, PALE = "#7ab6e0", "#edf0f3"

#: Each light colour with its counterpart on a dark background.
DARK_OF = {
    BLUE: "#6cb6ea",
    ORANGE: "#f0a04b",
    GREEN: "#3fc79a",
    PURPLE: "#dd9cc2",
    GREY: "#8d96a1",
    STRONG: "#f1f3f5",
    FULL: "#20628f",
    PALE: "#272d36",
}

#: Plotly options of every figure: no logo, no button that sends data to a cloud service.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}

#: Colour, symbol and size (pixels) of points.
Look: TypeAlias = tuple[str, str, float]
#: Name, colour, pattern and hover text of the bars of one kind.
BarLook: TypeAlias = tuple[str, str, str, str]
#: Longest text of a row or a point, characters.
LABEL = 90
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def template(*, dark: bool) -> dict[str, Any]:
    """The Plotly template of a theme, as JSON-ready data."""
    text, grid, ground = (
        ("#e6e8eb", "#2c323b", "#1a1e24") if dark else ("#2b3038", "#e7e8ea", "#fff")
    )
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": grid,
        "tickcolor": grid,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 12}},
    }
    colours = [BLUE, ORANGE, GREEN, PURPLE, GREY]
    return {
        "layout": {
            "margin": {"l": 12, "r": 16, "t": 32, "b": 44},
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "font": {"size": 12},
                "traceorder": "normal",
            },
            "hovermode": "closest",
            "dragmode": "zoom",
            # The label above a row (see `rows`).
            "annotationdefaults": {
                "showarrow": False,
                "font": {"size": 12},
                "x": 0,
                "xref": "x domain",
                "xanchor": "left",
                "yref": "y",
                "yanchor": "bottom",
            },
            "font": {"family": FONT, "size": 12.5, "color": text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": [DARK_OF[colour] for colour in colours] if dark else colours,
            "hoverlabel": {"bgcolor": ground, "bordercolor": grid, "font": {"color": text}},
            "xaxis": axis,
            "yaxis": axis,
        }
    }


class Drawing:
    """A figure in the making, with a fixed height in pixels and a flexible width.

    Plotly's validation took a third of the time of a report; tests do it instead.
    """

    def __init__(self, height: int, **layout: Any) -> None:
        self._traces: list[dict[str, Any]] = []
        self._layout = {"template": template(dark=False), "height": height, **layout}

    def add(self, kind: str, hover: str, **properties: Any) -> None:
        """Add a trace of JSON-ready data. kind: `scatter`, `bar`, `box`... hover: its template."""
        self._traces.append(
            {"type": kind, "hovertemplate": f"{hover}<extra></extra>", **properties}
        )

    def dots(
        self, name: str, hover: str, look: Look, marker: Mapping[str, Any] = {}, **properties: Any
    ) -> None:
        """Add a scatter trace of points. marker: more properties of them than their look."""
        marker = {**dict(zip(("color", "symbol", "size"), look, strict=True)), **marker}
        self.add("scatter", hover, name=name, mode="markers", marker=marker, **properties)

    def level(self, name: str, x: Sequence[float], y: float, hover: str) -> None:
        """Add a dashed line at a height, from the first to the last x."""
        line = {"color": ORANGE, "width": 1.5, "dash": "dash"}
        ends, heights = [x[0], x[-1]], shorten([y, y])
        self.add("scatter", hover, x=ends, y=heights, mode="lines", name=name, line=line)

    def finish(self) -> go.Figure:
        """The figure."""
        return go.Figure({"data": self._traces, "layout": self._layout}, _validate=False)


def rows(labels: list[str], axis: str = "") -> dict[str, Any]:
    """Layout of a figure with one labelled row per text, at y = 0, 1, 2... from the top down.

    The label is above its row, so that narrow screens have their full width for the data.
    axis: suffix of the subplot's axes (`""`, `"2"`...).
    """
    return {
        f"yaxis{axis}": {
            "tickvals": [round(place + 0.42, 2) for place in range(len(labels) - 1)],
            "showticklabels": False,
            "range": [len(labels) - 0.52, -0.62],
            "zeroline": False,
            "fixedrange": True,
        },
        "annotations": [
            {
                "text": plot_text(label, LABEL),
                "y": round(place - 0.14, 2),
                **({"xref": f"x{axis} domain", "yref": f"y{axis}"} if axis else {}),
            }
            for place, label in enumerate(labels)
        ],
    }


def draw_line(x: float | str, colour: str, dash: str = "solid") -> dict[str, Any]:
    """A vertical line through the plot: dotted before the data, else behind them."""
    return {
        "type": "line",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "layer": "above" if dash == "dot" else "below",
        "line": {"color": colour, "width": 1 if dash == "dot" else 1.5, "dash": dash},
    }


def draw_whiskers(points: pd.DataFrame, centre: str, colour: str) -> dict[str, Any]:
    """Error bars from the columns low and high around a column; none where they are NaN."""
    return {
        "type": "data",
        "symmetric": False,
        "array": shorten((points["high"] - points[centre]).fillna(0)),
        "arrayminus": shorten((points[centre] - points["low"]).fillna(0)),
        "color": colour,
        "thickness": 1.5,
        "width": 3,
    }


def draw_boxes(values: list[float], rows_of: list[int], name: str, colour: str) -> dict[str, Any]:
    """A box trace of values, each in the box of its row (see `rows`)."""
    return {
        "x": values,
        "y": [row + 0.12 for row in rows_of],
        "width": 0.36,
        "orientation": "h",
        "name": name,
        "boxpoints": "outliers",
        "line": {"color": colour, "width": 1.5},
        "marker": {"size": 4, "opacity": 0.6},
    }


def stack_bars(
    frame: pd.DataFrame, kinds: Mapping[Any, BarLook], axis: dict[str, Any]
) -> go.Figure:
    """Stacked bars, one for each task.

    frame: one row per task and kind: task (in the order to show), kind, size. kinds: the look of
    each kind, in the order of the stack. axis: layout of the axis of sizes.
    """
    tasks = list(dict.fromkeys(frame["task"]))
    drawing = Drawing(92 + 44 * len(tasks), **rows(tasks), barmode="stack", xaxis=axis)
    for kind, (name, colour, pattern, hover) in kinds.items():
        sizes = frame[frame["kind"] == kind]
        if not sizes.empty:
            drawing.add(
                "bar",
                hover,
                x=sizes["size"].round(6).tolist(),
                y=[tasks.index(task) + 0.12 for task in sizes["task"]],
                width=0.4,
                orientation="h",
                name=name,
                marker=fill_pattern(colour, pattern),
            )
    return drawing.finish()


def fill_pattern(colour: str, pattern: str) -> dict[str, Any]:
    """The marker of a bar."""
    look = {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.25}
    return {"color": colour, "pattern": look}


def shorten(values: Iterable[float]) -> list[float]:
    """The numbers with five significant digits, which no screen shows more of."""
    return [float(f"{value:.5g}") for value in values]


def thin(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """Every n-th row, at most `most` rows."""
    return frame.iloc[:: -(-len(frame) // most)] if len(frame) > most else frame
