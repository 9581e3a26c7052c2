"""Noise: the spread of the raw samples of each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import count, join_words, percent
from reports.source import RunData
from reports.task_data import TaskData
from reports.theme import BLUE, GREY, ORANGE, Drawing, draw_boxes, draw_line, rows, shorten
from reports.view import Cell, Section, SectionSpec, Table, figure_view, foremost
from results_db.stored_records import Source
from tuner.base.statistics import relative_iqr

NOISY, SUSPECT = 0.02, 0.10


def build(data: RunData) -> Section | None:
    """The spread of the raw samples of each task's trials; None for a run without samples."""
    tasks = [task for task in data.tasks if _list_spreads(task)]
    if not tasks:
        return None
    headings = ("task", "trials", "median spread", "largest", "winner's", "label")
    table = Table.of(headings, map(_row, tasks))
    shown, note = foremost(tasks, lambda task: median(_list_spreads(task)))
    view = figure_view("noise", noise(noise_frame(shown)), _caption(tasks) + note, table)
    return Section("noise", "Noise", "parts.html.j2", figures=[view], folded=True)


def noise_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per trial with at least four samples: task, spread (IQR / median)."""
    found = [(task.label, spread) for task in tasks for spread in _list_spreads(task)]
    return pd.DataFrame(found, columns=["task", "spread"])


def noise(frame: pd.DataFrame) -> go.Figure:
    """One box per task over its trials' inter-quartile range / median, on a logarithmic axis.

    frame: one row per trial: task (in the order to show), spread (a fraction, > 0).
    The lines mark `noisy` (2 %) and `suspect` (10 %).
    """
    tasks = list(dict.fromkeys(frame["task"]))
    row_layout = rows(tasks)
    limits = ((NOISY, "noisy", GREY), (SUSPECT, "suspect", ORANGE))
    row_layout["annotations"] += [
        {
            "text": word,
            "x": math.log10(limit),
            "xref": "x",
            "xanchor": "center",
            "yref": "paper",
            "y": 1,
            "font": {"color": colour},
        }
        for limit, word, colour in limits
    ]
    drawing = Drawing(
        92 + 46 * len(tasks),
        **row_layout,
        showlegend=False,
        xaxis={
            "title": {"text": "IQR ÷ median of a trial's samples"},
            "type": "log",
            "tickformat": "~%",
        },
        shapes=[draw_line(limit, colour, "dash") for limit, _, colour in limits],
    )
    places = [tasks.index(task) for task in frame["task"]]
    boxes = draw_boxes(shorten(frame["spread"]), places, "trials", BLUE)
    drawing.add("box", "%{x:.2%}", **boxes)
    return drawing.finish()


def _list_spreads(task: TaskData) -> list[float]:
    measured = (trial for trial in task.timed if trial.source == Source.MEASURED)
    return [spread for trial in measured if (spread := relative_iqr(trial.samples_us))]


def _row(task: TaskData) -> tuple[Cell, ...]:
    spreads, selection = _list_spreads(task), task.info.selection
    middle = median(spreads)
    winners = relative_iqr(selection.samples_us) if selection else None
    word = "suspect" if middle > SUSPECT else "noisy" if middle > NOISY else "quiet"
    shown = (percent(spread, 2) for spread in (middle, max(spreads), winners))
    return (task.label, len(spreads), *shown, word)


def _caption(tasks: list[TaskData]) -> str:
    middle = {task.label: median(_list_spreads(task)) for task in tasks}
    noisy = [label for label, spread in middle.items() if spread > NOISY]
    typical = percent(median(middle.values()), 2)
    text = f"The median spread of a trial's samples is {typical} (IQR ÷ median)"
    if not noisy:
        return f"{text}; no task exceeds {percent(NOISY)}."
    named = join_words(noisy[:3]) + (f" and {len(noisy) - 3} more" if len(noisy) > 3 else "")
    return f"{text}; {count(len(noisy), 'task')} above {percent(NOISY)}: {named}."


SECTION = SectionSpec(build, after="timeline")
