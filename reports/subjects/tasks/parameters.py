"""The effect of each parameter as strips of trials, and a map of the two with the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import clean, factor, plain, plot_text
from reports.task_data import TaskData, time_us
from reports.theme import BLUE, FULL, GREY, ORANGE, PALE, STRONG, Drawing, shorten, thin
from reports.view import MOST_ROWS, FigureView, Table, figure_view
from results_db.stored_records import TrialRecord
from search_spaces.records import Status, Value

_MOST_VALUES = 10
_MARKS = {"failed": ("x", ORANGE), "infeasible": ("square-x-open", GREY)}
#: Times from here on have the palest colour.
_PALEST = 2.0


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
    return [*views, _view_map(task, *few[:2])] if len(few) > 1 else views


def _view_map(task: TaskData, across: str, down: str) -> FigureView:
    frame = pair_frame(task, across, down)
    counts = frame["mark"].value_counts()
    rest = "".join(f", {counts[mark]} {mark}" for mark in sorted(counts.index) if mark)
    caption = (
        f"The best time ÷ the fastest by {across} and {down}, the parameters with the largest "
        f"effect; of {len(frame)} pairs {counts.get('', 0)} are timed{rest}."
    )
    cells = [mark or factor(best) for best, mark in zip(frame["best"], frame["mark"], strict=True)]
    columns, lines = list(frame["across"].unique()), list(frame["down"].unique())
    table = Table.of(
        (down, *(f"{across}={value}" for value in columns)),
        ((value, *cells[at :: len(lines)]) for at, value in enumerate(lines)),
    )
    return figure_view(f"{task.slug}-map", pair_map(frame, across, down), caption, table)


# -- strips ----------------------------------------------------------------------------------------
def parameters_frame(task: TaskData) -> pd.DataFrame:
    """One row per timed trial and varying parameter: parameter, value, slowdown, trial.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    timed = [trial for trial in task.timed if trial.median_us]
    fastest = min((time_us(trial) for trial in timed), default=1.0)
    rows = []
    for name, labels in label_values(timed).items():
        order = {text: place for place, text in enumerate(labels.shown)}
        pairs = sorted(zip(labels.of, timed, strict=True), key=lambda pair: order[pair[0]])
        rows += [(name, text, time_us(trial) / fastest, trial.number) for text, trial in pairs]
    columns = ["parameter", "value", "slowdown", "trial"]
    # Iterating over a column of pandas' own strings is slow.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype({"slowdown": float, "trial": int})


def parameters(frame: pd.DataFrame) -> go.Figure:
    """Strips of time over the fastest trial's time, grouped by parameter.

    frame: one row per timed trial and parameter: parameter and value (in the order to show),
    slowdown (time / fastest time, >= 1), trial (number).
    """
    rows = _rows(frame)
    drawing = Drawing(
        max(220, 84 + 21 * len(rows)),
        xaxis={"title": {"text": "time ÷ fastest trial"}, "type": "log", "ticksuffix": "x"},
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": [
                f"<b>{plot_text(name, 28)}</b>" if value is None else plot_text(value, 28)
                for name, value in rows
            ],
            "range": [len(rows) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
        },
    )
    places = {row: place for place, row in enumerate(rows)}
    names = list(dict.fromkeys(frame["parameter"]))
    for index, name in enumerate(names):
        shown = thin(frame[frame["parameter"] == name], 6000 // len(names))
        drawing.add(
            "box",
            "trial %{customdata}: %{x:.3f}x",
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
        )
    _add_summaries(drawing, frame, places)
    return drawing.finish()


def _add_summaries(
    drawing: Drawing, frame: pd.DataFrame, places: dict[tuple[str, str | None], int]
) -> None:
    groups = frame.groupby(["parameter", "value"], sort=False)["slowdown"]
    for name, values, symbol, colour, size in (
        ("median", groups.median(), "line-ns", ORANGE, 12),
        ("best", groups.min(), "diamond", BLUE, 9),
    ):
        drawing.dots(
            f"{name} of the value",
            f"{name}: %{{x:.3f}}x",
            (colour, symbol, size),
            {"line": {"color": colour, "width": 2 if symbol == "line-ns" else 0}},
            x=shorten(values),
            y=[places[key] for key in values.index],
        )


def _rows(frame: pd.DataFrame) -> list[tuple[str, str | None]]:
    """A heading row per parameter, then one row per value."""
    rows: dict[tuple[str, str | None], None] = {}
    for name, value in zip(frame["parameter"], frame["value"], strict=True):
        rows.setdefault((name, None))
        rows.setdefault((name, value))
    return list(rows)


# -- the map ---------------------------------------------------------------------------------------
def pair_frame(task: TaskData, across: str, down: str) -> pd.DataFrame:
    """One row per pair of values of two varying parameters: across, down, best, mark, trials.

    best: the least time over that of the fastest trial. A pair without a timed trial is
    `infeasible` where all of its trials exceed the device's limits, `failed`, `not timed` or
    `not tried`.
    """
    labels = label_values(task.trials)
    fastest = min((t for trial in task.timed if (t := time_us(trial)) > 0), default=1.0)
    cells: dict[tuple[str, str], list[TrialRecord]] = {
        pair: [] for pair in product(labels[across].shown, labels[down].shown)
    }
    for one, other, trial in zip(labels[across].of, labels[down].of, task.trials, strict=True):
        cells[one, other].append(trial)
    rows = []
    for pair, trials in cells.items():
        times = (time_us(trial) for trial in trials if trial.status is Status.CORRECT)
        best = min((time for time in times if time > 0), default=math.nan)
        mark = "" if best > 0 else _mark_untimed({trial.status for trial in trials})
        rows.append((*pair, best / fastest, mark, len(trials)))
    columns = ["across", "down", "best", "mark", "trials"]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"best": float, "trials": int})


def _mark_untimed(statuses: set[Status]) -> str:
    if not statuses:
        return "not tried"
    if Status.CORRECT in statuses:
        return "not timed"
    return "infeasible" if statuses == {Status.CONSTRAINTS} else "failed"


def pair_map(frame: pd.DataFrame, across: str, down: str) -> go.Figure:
    """A heat map of time over the fastest trial's time, with a mark where nothing was timed.

    frame: one row per cell, in the order to show: across and down (values of the parameters
    of these names), best (least time / fastest time, >= 1; NaN where nothing was timed), mark
    (`failed`, `infeasible`, empty), trials (how many).
    """
    columns, lines = ({v: at for at, v in enumerate(frame[n].unique())} for n in ("across", "down"))
    x, y = (
        [places[value] for value in frame[name]]
        for name, places in (("across", columns), ("down", lines))
    )
    drawing = Drawing(
        110 + 36 * len(lines),
        xaxis=_axis(across, columns, [-0.5, len(columns) - 0.5]),
        yaxis=_axis(down, lines, [len(lines) - 0.5, -0.5]),
    )
    best = [None if value != value else shorten([value])[0] for value in frame["best"]]
    drawing.add(
        "heatmap",
        "%{text}, trials: %{customdata}",
        x=x,
        y=y,
        z=best,
        text=["" if value is None else f"{value:.2f}x" for value in best],
        texttemplate="%{text}",
        textfont={"color": STRONG},
        customdata=frame["trials"].tolist(),
        colorscale=[[0, FULL], [1, PALE]],
        zmin=1,
        zmax=_PALEST,
        showscale=False,
        xgap=2,
        ygap=2,
        hoverongaps=False,
    )
    for mark, (symbol, colour) in _MARKS.items():
        places = [at for at, found in enumerate(frame["mark"]) if found == mark]
        if places:
            across_at, down_at = [x[at] for at in places], [y[at] for at in places]
            look = (colour, symbol, 10)
            drawing.dots(mark, mark, look, x=across_at, y=down_at, showlegend=True)
    return drawing.finish()


def _axis(name: str, places: dict[str, int], span: list[float]) -> dict[str, object]:
    return {
        "title": {"text": plot_text(name, 28)},
        "tickvals": list(places.values()),
        "ticktext": [plot_text(value, 14) for value in places],
        "range": span,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


# -- values ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ValueLabels:
    """The labels of one parameter's values over some trials."""

    #: In the order of the figure.
    shown: tuple[str, ...]
    #: One per trial.
    of: tuple[str, ...]


def label_values(trials: Sequence[TrialRecord]) -> dict[str, ValueLabels]:
    """The labels of each parameter that varies, by its name, in the order of names.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    found = {}
    for name in sorted({name for trial in trials for name in trial.config}):
        keys = [_key(trial.config.get(name)) for trial in trials]
        texts = {key: clean(text) for key, text in _groups(keys).items()}
        shown = tuple(dict.fromkeys(texts.values()))
        if len(shown) > 1:
            found[clean(name)] = ValueLabels(shown, tuple(texts[key] for key in keys))
    return found


def _key(value: Value) -> tuple[str, Value]:
    """The identity of a value: True differs from 1, but 1 equals 1.0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number" if number else type(value).__name__), value


def _groups(keys: list[tuple[str, Value]]) -> dict[tuple[str, Value], str]:
    """The label of each value by its key (see `_key`), in the order of the figure."""
    ranked = sorted(float(value) for kind, value in keys if kind == "number" and value is not None)
    numbers = sorted(set(ranked))
    others = sorted({key for key in keys if key[0] != "number"}, key=str)
    shown: dict[tuple[str, Value], str] = {
        ("number", number): f"{number:.12g}" for number in numbers
    }
    if len(numbers) > _MOST_VALUES:
        cuts = sorted({ranked[len(ranked) * step // 8] for step in range(8)})
        edges = [*cuts[1:], math.inf]
        for low, edge in zip(cuts, edges, strict=True):
            members = [number for number in numbers if low <= number < edge]
            ends = list(dict.fromkeys((plain(members[0]), plain(members[-1]))))
            shown |= {("number", number): " to ".join(ends) for number in members}
    return {**shown, **{key: f"{key[1]}" for key in others}}
