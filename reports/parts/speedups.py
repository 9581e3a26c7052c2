"""The speed-up figure of the leaderboard."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from reports import figures
from reports.outcome import TaskOutcome
from reports.parts.view import FigureView, Table, figure_view, foremost
from reports.quantity import clean, span, times
from reports.run_data import TaskData
from tuner.base.log_ratio import LogRatio, split_ratio


@dataclass(frozen=True, slots=True)
class _Point:
    """One speed-up of the chosen config for a task."""

    task: str
    #: `default` or `fastest baseline`.
    opponent: str
    #: `default` or the name of the baseline.
    name: str
    over: LogRatio


def speedup_view(results: list[tuple[TaskData, TaskOutcome]]) -> FigureView | None:
    """Speed-ups over the default config and the fastest baseline; None without a confirmation."""
    groups = [group for task, result in results if (group := _points(task, result))]
    if not groups:
        return None
    shown, note = foremost(groups, lambda group: -min(point.over.value for point in group))
    frame = pd.DataFrame(
        [(p.task, p.opponent, p.name, *split_ratio(p.over)) for group in shown for p in group],
        columns=["task", "opponent", "name", "ratio", "low", "high"],
    )
    frame[["low", "high"]] = frame[["low", "high"]].astype(float)
    table = Table.of(
        ("task", "against", "times faster", "95 % interval"),
        (
            (p.task, p.name, times(p.over), span(p.over) or "unknown")
            for group in groups
            for p in group
        ),
    )
    return figure_view("speedups", figures.speedups(frame), _caption(groups) + note, table)


def _points(task: TaskData, result: TaskOutcome) -> list[_Point]:
    points = []
    if result.over_default:
        points.append(_Point(task.label, "default", "default", result.over_default))
    if result.over_baseline and result.baseline:
        name = clean(result.baseline.name)
        points.append(_Point(task.label, "fastest baseline", name, result.over_baseline))
    return points


def _caption(groups: list[list[_Point]]) -> str:
    points = [p for group in groups for p in group if p.opponent == "default"]
    if not points:
        return "Speed-up over the fastest correct baseline, with 95 % intervals."
    best = max(points, key=lambda point: point.over.value)
    least = min(points, key=lambda point: point.over.value)
    if len(points) == 1:
        return f"The speed-up of {best.task} over its default config is {times(best.over)}."
    return (
        f"The largest speed-up over the default config is {times(best.over)} ({best.task}), the "
        f"smallest {times(least.over)} ({least.task}). A whisker that crosses 1 means that the "
        "two cannot be distinguished."
    )
