"""How noisy the timings were."""

from __future__ import annotations

from statistics import median

from reports import figures
from reports.figures.noise import NOISY, SUSPECT
from reports.frames import noise_frame
from reports.quantity import count, listed, percent
from reports.run_data import RunData, TaskData
from reports.view import Section, Table, figure_view, foremost
from search_spaces.statistics import relative_iqr


def build(data: RunData) -> Section | None:
    """Spread of the raw samples of each task's trials; None when no samples were kept."""
    tasks = [task for task in data.tasks if _spreads(task)]
    if not tasks:
        return None
    rows = [_row(task) for task in tasks]
    table = Table.of(("task", "trials", "median spread", "largest", "winner's", "label"), rows)
    shown, remark = foremost(tasks, lambda task: median(_spreads(task)))
    figure = figures.noise(noise_frame(shown))
    view = figure_view("noise", figure, _caption(tasks) + remark, table)
    return Section("noise", "Noise", "figure.html.j2", {"figure": view})


def _spreads(task: TaskData) -> list[float]:
    measured = (trial for trial in task.timed if trial.source == "measured")
    return [spread for trial in measured if (spread := relative_iqr(trial.samples_us))]


def _row(task: TaskData) -> tuple[str, int, str, str, str, str]:
    spreads = _spreads(task)
    selection = task.info.selection
    winners = relative_iqr(selection.samples_us) if selection else None
    return (
        task.label,
        len(spreads),
        percent(median(spreads), 2),
        percent(max(spreads), 2),
        percent(winners, 2),
        _word(median(spreads)),
    )


def _word(spread: float) -> str:
    return "suspect" if spread > SUSPECT else "noisy" if spread > NOISY else "quiet"


def _caption(tasks: list[TaskData]) -> str:
    middle = {task.label: median(_spreads(task)) for task in tasks}
    loud = [label for label, spread in middle.items() if spread > NOISY]
    typical = percent(median(middle.values()), 2)
    text = f"Samples of a typical trial scatter by {typical} of its median"
    if not loud:
        return f"{text}; no task is noisier than {percent(NOISY)}."
    named = listed(loud[:3]) + (f" and {len(loud) - 3} more" if len(loud) > 3 else "")
    return f"{text}; {count(len(loud), 'task')} above {percent(NOISY)}: {named}."
