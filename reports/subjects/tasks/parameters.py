"""The effect of each parameter: one strip of trials per value."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import factor, plot_text
from reports.source import TaskData, time_us
from reports.subjects.tasks.pair_map import view_pair_map
from reports.subjects.tasks.value_labels import label_values
from reports.theme import BLUE, GREY, ORANGE, Drawing, shorten, thin
from reports.view import MOST_ROWS, FigureView, Table, figure_view


def parameters_frame(task: TaskData) -> pd.DataFrame:
    """One row per timed trial and varying parameter: parameter, value, slowdown, trial, place.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    timed = [trial for trial in task.timed if trial.median_us]
    fastest = min((time_us(trial) for trial in timed), default=1.0)
    slowdowns = [time_us(trial) / fastest for trial in timed]
    rows = []
    for name, labels in label_values(timed).items():
        order = {text: place for place, text in enumerate(labels.shown)}
        rows += [
            (name, labels.of[place], slowdowns[place], timed[place].number, place)
            for place in sorted(range(len(timed)), key=lambda place: order[labels.of[place]])
        ]
    columns = ["parameter", "value", "slowdown", "trial", "place"]
    # Iterating over a column of pandas' own strings is slow.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype({"slowdown": float, "trial": int, "place": int})


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


def view_parameters(task: TaskData) -> list[FigureView]:
    """The effect of each parameter, and the map of the two with the largest."""
    frame = parameters_frame(task)
    if frame.empty:
        return []
    summary = [
        (f"{name}", f"{value}", len(group), float(group.min()), float(group.median()))
        for (name, value), group in frame.groupby(["parameter", "value"], sort=False)["slowdown"]
    ]
    worst: dict[str, tuple[float, str]] = {}
    for name, value, _, best, _ in summary:
        worst[name] = max(worst.get(name, (0.0, "")), (best, value), key=lambda found: found[0])
    ranked = sorted(worst, key=lambda name: -worst[name][0])
    most, value = worst[ranked[0]]
    caption = (
        f"{ranked[0]} has the largest effect: the best trial with {value} takes "
        f"{factor(most)} the fastest time."
    )
    table = Table.of(
        ("parameter", "value", "trials", "best ÷ fastest", "median ÷ fastest"),
        ((n, v, trials, factor(best), factor(middle)) for n, v, trials, best, middle in summary),
    )
    views = [figure_view(f"{task.slug}-parameters", parameters(frame), caption, table)]
    few = [
        name
        for name in ranked
        if frame.loc[frame["parameter"] == name, "value"].nunique() <= MOST_ROWS
    ]
    return [*views, view_pair_map(task, *few[:2])] if len(few) > 1 else views
