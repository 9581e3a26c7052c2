"""The finals of each task: a forest plot, and a table of all finalists."""

from __future__ import annotations

from dataclasses import dataclass

from reports import figures
from reports.finalists import PLACES, Finalist, finalists
from reports.frames import finals_frame
from reports.outcome import TaskOutcome, outcome
from reports.parts.view import FigureView, Table, figure_view
from reports.quantity import count, finite, micros, pairs, percent
from reports.run_data import TaskData

_HEADINGS = (
    "stage",
    "config",
    "place",
    "median, µs",
    "ln(time ÷ reference)",
    "interval",
    "passes",
    "message",
)


@dataclass(frozen=True, slots=True)
class TaskFinals:
    """The finals of one task."""

    task: TaskData
    result: TaskOutcome
    #: Number of equally fast configs.
    tied: int
    #: How the winner was chosen among them.
    reason: str
    #: None where no finalist was timed.
    figure: FigureView | None
    table: Table


def parts(tasks: tuple[TaskData, ...]) -> list[TaskFinals]:
    """One part per task with finals."""
    return [_part(task) for task in tasks if task.info.finals]


def _part(task: TaskData) -> TaskFinals:
    race, confirmation = finalists(task, "race"), finalists(task, "confirm")
    table = Table.of(_HEADINGS, [_row(finalist) for finalist in (*race, *confirmation)])
    selection = task.info.selection
    raced = any(finalist.log_ratio is not None for finalist in race)
    shown = race if raced else confirmation
    frame = finals_frame(shown)
    view = None
    if len(frame):
        caption = _caption(shown, outcome(task), raced=raced)
        view = figure_view(f"{task.slug}-finals", figures.finals(frame), caption, table)
    return TaskFinals(
        task=task,
        result=outcome(task),
        tied=len(selection.tie_set) if selection else 0,
        reason=selection.reason if selection else "",
        figure=view,
        table=table,
    )


def _row(finalist: Finalist) -> tuple[str, str, str, str, str, str, int, str]:
    record = finalist.record
    ratio = finalist.log_ratio
    return (
        record.stage,
        pairs(record.config),
        PLACES[finalist.place] if ratio else record.status.value,
        micros(finite(record.median_us)),
        percent(ratio.value if ratio else None, 2),
        " to ".join(percent(end, 2) for end in (ratio and ratio.ends) or ()),
        len(record.samples_us),
        record.message[:300],
    )


def _caption(shown: list[Finalist], result: TaskOutcome, *, raced: bool) -> str:
    timed = [finalist for finalist in shown if finalist.log_ratio is not None]
    alike = [finalist for finalist in timed if finalist.place in ("winner", "tied")]
    dropped = sum(finalist.place == "dropped" for finalist in timed)
    whiskers = (
        "Whiskers are joint intervals of all finalists"
        if raced
        else "Whiskers are separate 95 % intervals"
    )
    result_text = (
        f"{len(alike)} of {count(len(timed), 'finalist')} cannot be distinguished from the fastest"
        if len(alike) > 1
        else f"{_single_winner(result)} of {count(len(timed), 'finalist')}"
        if alike
        else f"No winner among {count(len(timed), 'finalist')}"
    )
    left = f"; {dropped} dropped early in the race" if dropped else ""
    return f"{result_text}{left}. {whiskers}; the band is ±1 % around the reference."


def _single_winner(result: TaskOutcome) -> str:
    if result.kept_because:
        return f"The default config stays ({result.kept_because}) instead of the fastest"
    return "The winner is significantly the fastest"
