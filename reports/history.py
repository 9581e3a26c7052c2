"""The history of a kernel over runs: its figure, with steps and breaks, and its table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import NOTHING, count, duration, factor, plot_text
from reports.theme import BLUE, GREEN, GREY, LABEL, ORANGE, PURPLE, Drawing, draw_line, shorten
from reports.view import FigureView, Table, figure_view, foremost
from results_db.task_history import History, RunResult
from tuner.base.log_ratio import Verdict

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
#: Most labels of runs below the figure, and the room above and below the times.
_MOST_LABELS, _ROOM = 12, 1.02
_SYMBOLS = {"": "circle", "faster": "triangle-down", "slower": "triangle-up"}


def view_history(kernel: str, histories: Sequence[History]) -> FigureView | None:
    """The times of a kernel's workloads over runs; None where no two results can be compared."""
    lines = [line for each in histories if len(line := list(_list_points(each))) > 1]
    if not lines:
        return None
    chosen, rest = foremost(lines, lambda line: max(abs(row["relative"] - 1) for row in line))
    rows = [row for line in chosen for row in line]
    steps = sum(bool(row["step"]) for line in lines for row in line)
    where = count(len(lines), "workload") if len(lines) > 1 else lines[0][0]["series"]
    caption = (
        f"{kernel}: {count(steps, 'step')} in {where}. A triangle begins a "
        f"step, a dotted line a changed environment. Times are normalised by what both runs "
        f"measured in one pass.{rest}"
    )
    table = Table.of(
        ("workload", "run", "time ÷ newest", "step", "what changed"),
        (
            (row["series"], row["run"], factor(row["relative"]), row["step"], row["note"])
            for row in rows
        ),
    )
    return figure_view("times", history(pd.DataFrame(rows)), caption, table)


def history(frame: pd.DataFrame) -> go.Figure:
    """One line per workload, broken where results cannot be compared; a triangle where a step is.

    The legend names what differs between the workloads; of one there is no legend.

    frame: one row per result, oldest first: series (label of the line), segment (a number that
    changes at each break), run (its number), revision (of git, or empty), relative (time over that
    of the newest result), step (`faster`, `slower` or empty), label (hover text).
    """
    revisions = dict(sorted(set(zip(frame["run"], frame["revision"], strict=True))))
    places = {run: place for place, run in enumerate(revisions)}
    shown = list(places)[:: -(-len(places) // _MOST_LABELS)]
    names = [f"{run}<br>{plot_text(revisions[run], 7)}" for run in shown]
    least, most = frame["relative"].min() / _ROOM, frame["relative"].max() * _ROOM
    drawing = Drawing(
        360,
        xaxis={
            "title": {"text": "run, revision"},
            "tickvals": [places[run] for run in shown],
            "ticktext": names,
        },
        yaxis={
            "title": {"text": "time ÷ newest"},
            "type": "log",
            "range": [math.log10(least), math.log10(most)],
        },
        shapes=[draw_line(places[run], GREY, "dot") for run in _find_breaks(frame)],
    )
    labels = _find_own_words({f"{series}": f"{series}".split() for series in frame["series"]})
    for number, (series, rows) in enumerate(frame.groupby("series", sort=False)):
        for place, (_, part) in enumerate(rows.groupby("segment", sort=False)):
            steps = part["step"].tolist()
            drawing.add(
                "scatter",
                "%{y:.3f}<br>%{text}",
                x=[places[run] for run in part["run"]],
                y=shorten(part["relative"]),
                text=[plot_text(label, 2 * LABEL) for label in part["label"]],
                mode="lines+markers",
                name=plot_text(labels[f"{series}"], LABEL),
                legendgroup=f"{number}",
                showlegend=place == 0 and len(labels) > 1,
                line={"color": _COLOURS[number % len(_COLOURS)]},
                marker={
                    "symbol": [_SYMBOLS[step] for step in steps],
                    "size": [13 if step else 6 for step in steps],
                },
            )
    return drawing.finish()


def _find_own_words(texts: dict[str, list[str]]) -> dict[str, str]:
    """The words of each text that not all of them have; the text, where that is none."""
    common = set.intersection(*map(set, texts.values()))
    return {
        text: " ".join(word for word in words if word not in common) or text
        for text, words in texts.items()
    }


def _find_breaks(frame: pd.DataFrame) -> list[int]:
    """The run of the first result behind each break."""
    first = frame.groupby(["series", "segment"], sort=False)["run"].first()
    return sorted(set(first[first.index.get_level_values("segment") > 0]))


def _list_points(each: History) -> Iterator[dict[str, Any]]:
    timed = [(result, time) for result in each.results if (time := _find_time(result))]
    segment = 0
    for result, time_us in timed:
        segment += bool(result.breaks)
        step = result.step
        note = "; ".join([*result.breaks, *result.config_changes])
        yield {
            "series": f"{each.workload} {each.device}",
            "segment": segment,
            "run": result.run.run_id,
            "revision": f"{result.run.environment.get('git') or ''}"[:7],
            "relative": time_us / timed[-1][1],
            "step": (Verdict.SLOWER if step.change.value > 0 else Verdict.FASTER) if step else "",
            "label": f"run {result.run.run_id} of {result.run.started_at:%Y-%m-%d %H:%M}, "
            f"{duration(time_us)} {note}",
            "note": note or NOTHING,
        }


def _find_time(result: RunResult) -> float | None:
    return result.normalised_us or (result.ships.median_us if result.ships else None)
