"""The error of each trial against its time, by the parameter that explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import finite, micros, plot_text
from reports.subjects.tasks.parameters import label_values
from reports.task_data import TaskData
from reports.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, shorten, thin
from reports.view import FigureView, Table, figure_view

#: Least ln of the ratio of two errors that are not alike.
_UNLIKE = 0.1
#: Looks of the values of a parameter; a figure has at most as many.
LOOKS = (
    (BLUE, "circle"),
    (GREEN, "diamond"),
    (PURPLE, "square"),
    (GREY, "cross"),
    (ORANGE, "triangle-up"),
)


def errors_frame(task: TaskData, most: int) -> tuple[str, pd.DataFrame]:
    """One row per timed trial with an error: value, median_us, error, trial.

    The value is that of the parameter that explains most of the error's variance, which comes
    first; parameters with more than `most` values are left out. Empty where errors are alike.
    """
    trials = [t for t in task.timed if t.median_us and (finite(t.error) or 0) > 0]
    logs = [math.log(trial.error or 1.0) for trial in trials]
    frame = pd.DataFrame(columns=["value", "median_us", "error", "trial"])
    if not logs or max(logs) - min(logs) < _UNLIKE:
        return "", frame
    labels = {
        name: found for name, found in label_values(trials).items() if len(found.shown) <= most
    }
    if not labels:
        return "", frame
    name = max(labels, key=lambda name: _explain(labels[name].of, logs))
    values = labels[name]
    order = {text: place for place, text in enumerate(values.shown)}
    rows = sorted(
        (order[text], text, trial.median_us, trial.error, trial.number)
        for text, trial in zip(values.of, trials, strict=True)
    )
    return name, pd.DataFrame([row[1:] for row in rows], columns=frame.columns)


def _explain(labels: Sequence[str], values: Sequence[float]) -> float:
    """The sum of squares between groups of values."""
    mean = fmean(values)
    groups: dict[str, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        groups.setdefault(label, []).append(value)
    return sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())


def errors(frame: pd.DataFrame, parameter: str, tolerance: float | None = None) -> go.Figure:
    """A dot per trial, coloured by the value of one parameter.

    frame: one row per timed trial with an error: value (of the parameter of that name, in the
    order to show), median_us, error (||out - ref|| / ||ref||, > 0), trial (number).
    tolerance: the largest error that counts as correct, for a line.
    """
    drawing = Drawing(
        300,
        xaxis={"title": {"text": "median time (µs)"}, "type": "log"},
        yaxis={"title": {"text": "relative error"}, "type": "log", "exponentformat": "e"},
    )
    for (colour, symbol), value in zip(LOOKS, frame["value"].unique(), strict=False):
        group = thin(frame[frame["value"] == value], 1000)
        drawing.dots(
            plot_text(f"{parameter}={value}", 40),
            "trial %{customdata}: %{x:,.4~g} µs, error %{y:.3~g}",
            (colour, symbol, 7),
            x=shorten(group["median_us"]),
            y=shorten(group["error"]),
            customdata=group["trial"].tolist(),
            showlegend=True,
            marker={"opacity": 0.7},
        )
    if tolerance and len(frame):
        ends = shorten([frame["median_us"].min(), frame["median_us"].max()])
        drawing.level("tolerance", ends, tolerance, "tolerance: %{y:.3~g}")
    return drawing.finish()


def view_errors(task: TaskData) -> FigureView | None:
    """The error against the time, where trials differ in it."""
    parameter, frame = errors_frame(task, len(LOOKS))
    if frame.empty:
        return None
    summary = [
        (f"{value}", len(group), *group["error"].agg(["min", "max"]), group["median_us"].min())
        for value, group in frame.groupby("value", sort=False)
    ]
    exact = min(summary, key=lambda row: row[3])
    fast = min(summary, key=lambda row: row[4])
    caption = (
        f"{parameter} explains most of the error: the fastest trial with {fast[0]} takes "
        f"{micros(fast[4])} µs, and such trials have an error of up to {fast[3]:.2g}"
    )
    if exact is not fast:
        caption += f"; {exact[0]} has up to {exact[3]:.2g} and takes {micros(exact[4])} µs"
    table = Table.of(
        (parameter, "trials", "least error", "largest error", "fastest, µs"),
        ((v, n, f"{low:.2g}", f"{high:.2g}", micros(us)) for v, n, low, high, us in summary),
    )
    figure = errors(frame, parameter, task.info.tolerance)
    return figure_view(f"{task.slug}-errors", figure, f"{caption}.", table)
