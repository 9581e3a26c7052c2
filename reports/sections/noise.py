"""The section of noise: the spread of raw samples."""

from __future__ import annotations

from statistics import median

from reports import figures
from reports.figures.noise import NOISY, SUSPECT
from reports.frames import noise_frame
from reports.parts.view import Section, Table, figure_view, foremost
from reports.quantity import count, join_words, percent
from reports.run_data import RunData, TaskData
from results_db.stored_records import Source
from tuner.base.statistics import relative_iqr


def build(data: RunData) -> Section | None:
    """The spread of the raw samples of each task's trials; None for a run without samples."""
    tasks = [task for task in data.tasks if _spreads(task)]
    if not tasks:
        return None
    rows = [_row(task) for task in tasks]
    table = Table.of(("task", "trials", "median spread", "largest", "winner's", "label"), rows)
    shown, note = foremost(tasks, lambda task: median(_spreads(task)))
    figure = figures.noise(noise_frame(shown))
    view = figure_view("noise", figure, _caption(tasks) + note, table)
    return Section("noise", "Noise", "figure.html.j2", {"figure": view})


def _spreads(task: TaskData) -> list[float]:
    measured = (trial for trial in task.timed if trial.source == Source.MEASURED)
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
    noisy = [label for label, spread in middle.items() if spread > NOISY]
    typical = percent(median(middle.values()), 2)
    text = f"The median spread of a trial's samples is {typical} (IQR ÷ median)"
    if not noisy:
        return f"{text}; no task exceeds {percent(NOISY)}."
    named = join_words(noisy[:3]) + (f" and {len(noisy) - 3} more" if len(noisy) > 3 else "")
    return f"{text}; {count(len(noisy), 'task')} above {percent(NOISY)}: {named}."
