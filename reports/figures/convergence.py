"""Best time so far, over trials or over device time."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from reports.figures.theme import BLUE, GREY, LABEL, ORANGE, Drawing, shorten, thin
from reports.quantity import plot_text

_AXES = {"trial": "trials finished", "device_s": "device time (s)"}


def convergence(
    frame: pd.DataFrame, axis: str = "trial", default_us: float | None = None
) -> go.Figure:
    """Best-so-far as a step line, every timed trial as a dot.

    frame: one row per trial in the order of completion: trial, device_s (cumulative, seconds),
    median_us (NaN where nothing was timed), best_us, label (hover text).
    axis: `trial` or `device_s`. default_us: the default config's time in the search, for a line.
    """
    drawing = Drawing(
        300,
        xaxis={"title": {"text": _AXES[axis]}, "rangemode": "tozero"},
        yaxis={"title": {"text": "median time (µs)"}, "type": "log"},
    )
    timed = thin(frame[frame["median_us"].notna()], 3000)
    drawing.add(
        "scatter",
        x=timed[axis].round(3).tolist(),
        y=shorten(timed["median_us"]),
        text=[plot_text(label, LABEL) for label in timed["label"]],
        mode="markers",
        name="trial",
        marker={"color": GREY, "size": 5, "opacity": 0.55},
        hovertemplate="%{y:,.4~g} µs<br>%{text}<extra></extra>",
    )
    best = _corners(frame[frame["best_us"].notna()])
    drawing.add(
        "scatter",
        x=best[axis].round(3).tolist(),
        y=shorten(best["best_us"]),
        mode="lines",
        name="best so far",
        line={"color": BLUE, "width": 2.5, "shape": "hv"},
        hovertemplate="best so far: %{y:,.4~g} µs<extra></extra>",
    )
    if default_us is not None and len(frame):
        drawing.add(
            "scatter",
            x=[0, float(frame[axis].max())],
            y=shorten([default_us, default_us]),
            mode="lines",
            name="default config",
            line={"color": ORANGE, "width": 1.5, "dash": "dash"},
            hovertemplate="default config: %{y:,.4~g} µs<extra></extra>",
        )
    return drawing.finish()


def _corners(best: pd.DataFrame) -> pd.DataFrame:
    """The rows at which a step line turns, and its end."""
    turns = best["best_us"] != best["best_us"].shift()
    return best[turns | (best.index == best.index[-1])] if len(best) else best
