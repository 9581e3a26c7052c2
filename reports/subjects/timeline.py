"""The time line: what every process did when, for a run with a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import clean, count, join_words, percent, plot_text, seconds
from reports.source import RunData
from reports.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, Drawing, fill_pattern
from reports.view import Section, SectionSpec, Table, figure_view

#: Most lanes that the figure shows; its data table has the spans of all.
_MOST_LANES = 40
#: Rows of bars that the figure shows, if leaving out spans inside others achieves that.
_MOST_ROWS = 100
_CUT = " Innermost spans are in the data table only."
_COLUMNS = ["lane", "start_s", "duration_s", "depth", "category", "name", "end"]
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


def build(data: RunData) -> Section | None:
    """The section; None for a run without a trace."""
    if data.timeline is None or not data.timeline["spans"]:
        return None
    frame = timeline_frame(data.timeline)
    shown, note = _foremost(frame)
    left_out = int(data.timeline["spans_left_out"])
    if left_out:
        note += f" {count(left_out, 'shorter span')} left out."
    view = figure_view("spans", timeline(shown), _caption(frame) + note, _table(frame))
    tables = {"Time by category": _totals(frame)}
    section = Section.of("timeline", "Time line", figures=[view], tables=tables)
    return replace(section, folded=True)


def timeline_frame(stored: Mapping[str, Any]) -> pd.DataFrame:
    """One row per stored span, by start: lane, start_s, duration_s, depth, category, name, end.

    end: `killed` for a span that ended with its process, else empty. self_s: the duration without
    that of the spans directly inside.
    """
    lanes = [clean(lane) for lane in stored["lanes"]]
    rows = [
        (lanes[lane], start / 1e3, duration / 1e3, depth, category, clean(name), "".join(end))
        for lane, start, duration, depth, category, name, *end in stored["spans"]
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    frame["self_s"] = _self_times(frame)
    return frame


def _self_times(frame: pd.DataFrame) -> list[float]:
    own = frame["duration_s"].tolist()
    around: dict[tuple[str, int], int] = {}
    for place, (lane, depth) in enumerate(zip(frame["lane"], frame["depth"], strict=True)):
        around[lane, depth] = place
        outer = around.get((lane, depth - 1))
        if outer is not None:
            own[outer] -= frame["duration_s"].iloc[place]
    return [max(0.0, value) for value in own]


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
        annotations=[{"text": plot_text(lane, 64), "y": tops[lane]} for lane in lanes],
        # A name that does not fit into its bar is shown on hover only.
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    for category in [*_LOOKS, *sorted(set(frame["category"]) - set(_LOOKS))]:
        spans = frame[frame["category"] == category]
        if not spans.empty:
            hover = "%{text}<br>%{x:.3f} s from %{base:.3f} s"
            drawing.add("bar", hover, **_bars(category, spans, tops))
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
        "marker": fill_pattern(colour, pattern),
    }


def _foremost(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The spans of the lanes with the most time, and a note on what is not shown."""
    shown, note = frame, ""
    times = frame.groupby("lane", sort=False)["self_s"].sum()
    if len(times) > _MOST_LANES:
        kept = set(times.nlargest(_MOST_LANES).index)
        shown = frame[frame["lane"].isin(kept)]
        note = f" Shown: {_MOST_LANES} of {len(times)} lanes."
    while _rows(shown) > _MOST_ROWS and shown["depth"].max() > 0:
        shown = shown[shown["depth"] < shown["depth"].max()]
        note = f"{note.removesuffix(_CUT)}{_CUT}"
    return shown, note


def _rows(frame: pd.DataFrame) -> int:
    return int((frame.groupby("lane")["depth"].max() + 1).sum())


def _caption(frame: pd.DataFrame) -> str:
    lasted = float((frame["start_s"] + frame["duration_s"]).max())
    times = frame.groupby("category")["self_s"].sum().sort_values(ascending=False)
    most = [f"{name} {seconds(float(time))}" for name, time in times.head(3).items()]
    lanes = count(frame["lane"].nunique(), "lane")
    return (
        f"{seconds(lasted)} in {lanes}; most time went to {join_words(most)}, all lanes together."
    )


def _totals(frame: pd.DataFrame) -> Table:
    """Per category and lane, the time of its spans without that of spans inside them."""
    total = float(frame["self_s"].sum())
    grouped = frame.groupby("category", sort=False)["self_s"].agg(["sum", "count"])
    grouped = grouped.sort_values("sum", ascending=False)
    rows = [
        (f"{name}", seconds(float(row["sum"])), percent(row["sum"] / total), int(row["count"]))
        for name, row in grouped.iterrows()
    ]
    return Table.of(("category", "time, all lanes", "share", "spans"), rows)


def _table(frame: pd.DataFrame) -> Table:
    ranked = frame.sort_values("duration_s", ascending=False, kind="stable")
    columns = ("lane", "category", "name", "end", "start_s", "duration_s")
    rows = [
        (lane, category, f"{name} ({end})" if end else name, f"{start:.3f}", f"{duration:.3f}")
        for lane, category, name, end, start, duration in ranked[list(columns)].values.tolist()
    ]
    return Table.of(("lane", "category", "span", "start, s", "duration, s"), rows)


SECTION = SectionSpec(build, after="measuring")
