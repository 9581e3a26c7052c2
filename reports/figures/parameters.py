"""The times for each value of each parameter: one strip of trials per value."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, ORANGE, base, thin
from reports.quantity import plot_text


def parameters(frame: pd.DataFrame) -> go.Figure:
    """Strips of time over the fastest trial's time, grouped by parameter.

    frame: one row per timed trial and parameter: parameter and value (in the order to
    show), slowdown (time / fastest time, >= 1), trial (number).
    """
    rows = _rows(frame)
    figure = base(
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
    shown = thin(frame, 6000)
    places = {row: place for place, row in enumerate(rows)}
    spots = [
        round(places[name, value] + 0.5 * ((index * 0.618034) % 1 - 0.5), 3)
        for index, (name, value) in enumerate(zip(shown["parameter"], shown["value"], strict=True))
    ]
    figure.add_scatter(
        x=shown["slowdown"].round(4).tolist(),
        y=spots,
        customdata=shown["trial"].tolist(),
        mode="markers",
        name="trial",
        marker={"color": GREY, "size": 4.5, "opacity": 0.45},
        hovertemplate="trial %{customdata}: %{x:.3f}x<extra></extra>",
    )
    _summaries(figure, frame, places)
    return figure


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
    figure: go.Figure, frame: pd.DataFrame, places: dict[tuple[str, str | None], int]
) -> None:
    groups = frame.groupby(["parameter", "value"], sort=False)["slowdown"]
    for name, values, symbol, colour, size in (
        ("median", groups.median(), "line-ns", ORANGE, 12),
        ("best", groups.min(), "diamond", BLUE, 9),
    ):
        figure.add_scatter(
            x=values.tolist(),
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
