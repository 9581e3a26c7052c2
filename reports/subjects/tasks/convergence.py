"""Convergence: the best time so far over trials."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import factor, finite, micros, plain, plot_text, seconds
from reports.task_data import TaskData, time_us
from reports.theme import BLUE, GREY, LABEL, Drawing, shorten, thin
from reports.view import FigureView, Table, figure_view
from results_db.stored_records import Source
from search_spaces.records import config_key


def convergence_frame(task: TaskData) -> pd.DataFrame:
    """One row per trial: trial, device_s (cumulative), median_us, best_us, label."""
    rows, spent = [], 0.0
    for place, (trial, config) in enumerate(zip(task.trials, task.configs, strict=True), start=1):
        if trial.source != Source.REUSED:
            spent += finite(trial.device_s) or 0.0
        rows.append((place, spent, time_us(trial), config))
    frame = pd.DataFrame(rows, columns=["trial", "device_s", "median_us", "label"])
    frame["best_us"] = frame["median_us"].astype(float).cummin().ffill()
    return frame


def convergence(frame: pd.DataFrame, default_us: float | None = None) -> go.Figure:
    """Best-so-far as a step line, every timed trial as a dot.

    frame: one row per trial in the order of completion: trial, median_us (NaN where nothing was
    timed), best_us, label (hover text). default_us: the default config's time in the search.
    """
    drawing = Drawing(
        300,
        xaxis={"title": {"text": "trials finished"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "median time (µs)"}, "type": "log"},
    )
    timed = thin(frame[frame["median_us"].notna()], 3000)
    drawing.dots(
        "trial",
        "%{y:,.4~g} µs<br>%{text}",
        (GREY, "circle", 5),
        x=timed["trial"].tolist(),
        y=shorten(timed["median_us"]),
        text=[plot_text(label, LABEL) for label in timed["label"]],
        marker={"opacity": 0.55},
    )
    best = _corners(frame[frame["best_us"].notna()])
    drawing.add(
        "scatter",
        "best so far: %{y:,.4~g} µs",
        x=best["trial"].tolist(),
        y=shorten(best["best_us"]),
        mode="lines",
        name="best so far",
        line={"color": BLUE, "width": 2.5, "shape": "hv"},
    )
    if default_us is not None and len(frame):
        ends = (0, float(frame["trial"].max()))
        drawing.level("default config", ends, default_us, "default config: %{y:,.4~g} µs")
    return drawing.finish()


def _corners(best: pd.DataFrame) -> pd.DataFrame:
    """The rows at which a step line turns, and its end."""
    turns = best["best_us"] != best["best_us"].shift()
    return best[turns | (best.index == best.index[-1])] if len(best) else best


def view_convergence(task: TaskData) -> FigureView:
    """The figure, and in its caption when the fastest trial was found."""
    frame = convergence_frame(task)
    default_us = _default_in_search(task)
    steps = frame[frame["best_us"].notna() & (frame["best_us"] != frame["best_us"].shift())]
    last = steps.iloc[-1]
    caption = (
        f"The fastest trial takes {micros(last['best_us'])} µs and is number {int(last['trial'])} "
        f"of {len(frame)}"
    )
    if default_us is not None and last["best_us"]:
        caption += f"; the default config takes {factor(default_us / last['best_us'])} that time"
    total_s = float(frame["device_s"].iloc[-1])
    if total_s > 0:
        caption += f"; found after {seconds(last['device_s'])} of {seconds(total_s)} of device time"
    rows = zip(steps["trial"].tolist(), steps["device_s"], steps["best_us"], strict=True)
    table = Table.of(
        ("trial", "device time, s", "best so far, µs"),
        ((trial, plain(device_s), micros(best_us)) for trial, device_s, best_us in rows),
    )
    drawn = convergence(frame, default_us)
    return figure_view(f"{task.slug}-convergence", drawn, f"{caption}.", table)


def _default_in_search(task: TaskData) -> float | None:
    """The default config's time in the search, which is comparable with the other trials."""
    selection = task.info.selection
    if selection is None or selection.default is None:
        return None
    key = config_key(selection.default)
    # Keys are slow to make; equal values may be of different types.
    alike = (trial for trial in task.timed if trial.config == selection.default)
    found = next((trial for trial in alike if config_key(trial.config) == key), None)
    return finite(found.median_us) if found else None
