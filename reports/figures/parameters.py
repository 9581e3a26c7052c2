"""The times for each value of each parameter: one strip of trials per value."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, Drawing, shorten, thin
from reports.quantity import plot_text


def parameters(frame: pd.DataFrame) -> go.Figure:
    """Strips of time over the fastest trial's time, grouped by parameter.

    frame: one row per timed trial and parameter: parameter and value (in the order to show),
    slowdown (time / fastest time, >= 1), trial (number), place (in the order of completion).
    """
    rows = _rows(frame)
    drawing = Drawing(
        max(220, 84 + 21 * len(rows)),
        xaxis={"title": {"text": "time ÷ fastest trial"}, "type": "log", "ticksuffix": "x"},
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": [_tick(name, value) for name, value in rows],
            "range": [len(rows) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
        },
    )
    places = {row: place for place, row in enumerate(rows)}
    names = list(dict.fromkeys(frame["parameter"]))
    for index, name in enumerate(names):
        # All strips in one order, so that the page holds it once.
        group = frame[frame["parameter"] == name].sort_values("place")
        shown = thin(group, 6000 // len(names))
        drawing.add(
            "box",
            x=shorten(shown["slowdown"]),
            y=[places[name, value] for value in shown["value"]],
            customdata=shown["trial"].tolist(),
            orientation="h",
            name="trial",
            legendgroup="trial",
            showlegend=index == 0,
            boxpoints="all",
            jitter=0.9,
            pointpos=0,
            fillcolor="rgba(0,0,0,0)",
            line={"width": 0},
            marker={"color": GREY, "size": 4.5, "opacity": 0.45},
            hoveron="points",
            hovertemplate="trial %{customdata}: %{x:.3f}x<extra></extra>",
        )
    _summaries(drawing, frame, places)
    return drawing.finish()


def _tick(name: str, value: str | None) -> str:
    return f"<b>{plot_text(name, 28)}</b>" if value is None else plot_text(value, 28)


def _rows(frame: pd.DataFrame) -> list[tuple[str, str | None]]:
    """A heading row per parameter, then one row per value."""
    rows: list[tuple[str, str | None]] = []
    for name in dict.fromkeys(frame["parameter"]):
        rows.append((name, None))
        rows.extend(
            (name, value) for value in dict.fromkeys(frame.loc[frame["parameter"] == name, "value"])
        )
    return rows


def _summaries(
    drawing: Drawing, frame: pd.DataFrame, places: dict[tuple[str, str | None], int]
) -> None:
    groups = frame.groupby(["parameter", "value"], sort=False)["slowdown"]
    for name, values, symbol, colour, size in (
        ("median", groups.median(), "line-ns", ORANGE, 12),
        ("best", groups.min(), "diamond", BLUE, 9),
    ):
        drawing.add(
            "scatter",
            x=shorten(values),
            y=[places[key] for key in values.index],
            mode="markers",
            name=f"{name} of the value",
            marker={
                "color": colour,
                "size": size,
                "symbol": symbol,
                "line": {"color": colour, "width": 2 if symbol == "line-ns" else 0},
            },
            hovertemplate=f"{name}: %{{x:.3f}}x<extra></extra>",
        )
