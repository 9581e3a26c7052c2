"""The finals of a task: a forest plot, and a table of all finalists with their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import count, finite, micros, pairs, percent
from reports.task_data import TaskData
from reports.theme import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Drawing,
    draw_line,
    draw_whiskers,
    rows,
    shorten,
)
from reports.view import Cell, FigureView, Table, figure_view
from results_db.stored_records import FinalRecord, SelectionRecord
from search_spaces.records import Config, Status, canonical_json, config_key
from tuner.base.log_ratio import LogRatio, pick_ratio

#: Configs within this relative difference count as equally fast.
EPSILON = 0.01
_TIED = (GREEN, "circle", 9)
#: Each place of a timed finalist with its name in the legend, its meaning, and its look.
PLACES = {
    "winner": ("winner", "chosen", (BLUE, "diamond", 11)),
    "tied": ("tied with the fastest", "cannot be distinguished from the fastest", _TIED),
    "slower": ("slower", "slower than the fastest", (ORANGE, "square", 8)),
    "dropped": ("dropped early", "dropped early in the race", (GREY, "circle-open", 8)),
}
_HEADINGS = (
    *("stage", "config, where they differ", "place", "median, µs"),
    *("ln(time ÷ reference)", "interval", "passes", "message"),
)


@dataclass(frozen=True, slots=True)
class Finalist:
    """One finalist in one stage."""

    record: FinalRecord
    #: A key of `PLACES`; `failed` without a time.
    place: str
    #: The parameters in which the finalists differ.
    label: str
    #: ln(time / reference's time); None where unknown.
    log_ratio: LogRatio | None


def finalists(task: TaskData, stage: str) -> list[Finalist]:
    """The finalists of a stage, `race` or `confirm`: fastest first, those without a time last."""
    records = [record for record in task.info.finals if record.stage == stage]
    differing = _differing([record.config for record in records])
    found = []
    for record in records:
        ratio = pick_ratio(record.log_ratio) if record.status is Status.CORRECT else None
        shown = {name: record.config[name] for name in differing if name in record.config}
        place = _place(record, task.info.selection) if ratio else "failed"
        label = pairs(shown or record.config) or "the only config"
        found.append(Finalist(record, place, label, ratio))
    return sorted(found, key=lambda f: f.log_ratio.value if f.log_ratio else math.inf)


def _place(record: FinalRecord, selection: SelectionRecord | None) -> str:
    key = config_key(record.config)
    if selection is not None and key == config_key(selection.winner):
        return "winner"
    if selection is not None and key in {config_key(config) for config in selection.tie_set}:
        return "tied"
    return "dropped" if record.dropped else "slower"


def _differing(configs: Sequence[Config]) -> list[str]:
    """The parameters that differ between configs."""
    names = sorted({name for config in configs for name in config})
    values = {
        name: {canonical_json(config[name]) if name in config else "" for config in configs}
        for name in names
    }
    return [name for name in names if len(values[name]) > 1]


def finals_frame(finalists: Sequence[Finalist]) -> pd.DataFrame:
    """One row per timed finalist: label, place, ln, low, high (NaN where unknown), passes."""
    rows = [
        (f.label, f.place, ratio.value, *(ratio.ends or (None, None)), len(f.record.samples_us))
        for f in finalists
        if (ratio := f.log_ratio) is not None
    ]
    frame = pd.DataFrame(rows, columns=["label", "place", "ln", "low", "high", "passes"])
    return frame.astype({"ln": float, "low": float, "high": float})


def finals(frame: pd.DataFrame) -> go.Figure:
    """A forest plot: one row per finalist, a point and its interval on ln(time / reference's time).

    frame: one row per timed finalist, in the order to show: label, place (`winner`, `tied`,
    `slower`, `dropped`), ln, low, high (NaN where unknown), passes (samples it is made from).
    The band of ±1 % around the reference shows configs that count as equally fast.
    """
    labels = frame["label"].tolist()
    band = {
        **draw_line(-EPSILON, GREY),
        "type": "rect",
        "x1": EPSILON,
        "fillcolor": GREY,
        "opacity": 0.14,
        "line": {"width": 0},
    }
    drawing = Drawing(
        96 + 44 * len(labels),
        **rows(labels),
        xaxis={"title": {"text": "ln(time ÷ time of the reference)"}, "tickformat": "~%"},
        shapes=[band, draw_line(0.0, GREY)],
    )
    spots = pd.Series(range(len(frame)), index=frame.index)
    for place, (name, _, look) in PLACES.items():
        points = frame[frame["place"] == place]
        if points.empty:
            continue
        drawing.dots(
            name,
            "%{x:.3%} after %{customdata} passes",
            look,
            x=shorten(points["ln"]),
            y=[round(spot + 0.12, 2) for spot in spots[points.index]],
            customdata=points["passes"].tolist(),
            marker={"line": {"width": 1.5}},
            error_x=draw_whiskers(points, "ln", look[0]),
        )
    return drawing.finish()


def view_finals(task: TaskData) -> tuple[str, FigureView | None, Table]:
    """How the winner was chosen among equally fast configs, the figure and the table.

    Without a figure where no finalist was timed.
    """
    race, confirmation = finalists(task, "race"), finalists(task, "confirm")
    table = Table.of(_HEADINGS, [_row(finalist) for finalist in (*race, *confirmation)])
    selection = task.info.selection
    raced = any(finalist.log_ratio is not None for finalist in race)
    shown = race if raced else confirmation
    frame = finals_frame(shown)
    view = None
    if len(frame):
        caption = _caption(task, shown, raced=raced)
        view = figure_view(f"{task.slug}-finals", finals(frame), caption, table)
    choice = ""
    if selection and selection.reason:
        tied, reason = len(selection.tie_set), selection.reason
        among = f"Chosen among {tied} equally fast configs (within 1 %): {reason}"
        choice = among if tied > 1 else f"{reason[:1].upper()}{reason[1:]}"
    return choice, view, table


def _row(finalist: Finalist) -> tuple[Cell, ...]:
    record = finalist.record
    ratio = finalist.log_ratio
    return (
        record.stage,
        finalist.label,
        PLACES[finalist.place][1] if ratio else record.status.value,
        micros(finite(record.median_us)),
        percent(ratio.value if ratio else None, 2),
        " to ".join(percent(end, 2) for end in (ratio and ratio.ends) or ()),
        len(record.samples_us),
        record.message[:300],
    )


def _caption(task: TaskData, shown: list[Finalist], *, raced: bool) -> str:
    timed = [finalist for finalist in shown if finalist.log_ratio is not None]
    alike = [finalist for finalist in timed if finalist.place in ("winner", "tied")]
    dropped = sum(finalist.place == "dropped" for finalist in timed)
    finalists = count(len(timed), "finalist")
    if len(alike) > 1:
        text = f"{len(alike)} of {finalists} cannot be distinguished from the fastest"
    elif not alike:
        text = f"No winner among {finalists}"
    elif why := task.kept_because:
        text = f"The default config stays ({why}) instead of the fastest of {finalists}"
    else:
        text = f"The winner is significantly the fastest of {finalists}"
    left = f"; {dropped} dropped early in the race" if dropped else ""
    kind = "joint intervals of all finalists" if raced else "separate 95 % intervals"
    return f"{text}{left}. Whiskers are {kind}; the band is ±1 % around the reference."
