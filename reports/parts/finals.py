"""The finals of a task: a forest plot, and a table of all finalists."""

from __future__ import annotations

from dataclasses import dataclass

from reports import figures
from reports.finalists import PLACES, Finalist, finalists
from reports.frames import finals_frame
from reports.outcome import TaskOutcome, outcome
from reports.parts.view import FigureView, Table, TrialColumns, figure_view
from reports.quantity import count, finite, micros, percent
from reports.run_data import TaskData

_HEADINGS = (
    "stage",
    "config, where they differ",
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

    #: How the winner was chosen among equally fast configs; empty where unknown.
    choice: str
    #: None where no finalist was timed.
    figure: FigureView | None
    table: Table


def view_finals(task: TaskData, trials: TrialColumns) -> TaskFinals | None:
    """The finals of a task; None where there were none."""
    if not task.info.finals:
        return None
    race, confirmation = finalists(task, "race"), finalists(task, "confirm")
    table = Table.of(_HEADINGS, [_row(finalist) for finalist in (*race, *confirmation)])
    selection = task.info.selection
    raced = any(finalist.log_ratio is not None for finalist in race)
    shown = race if raced else confirmation
    frame = finals_frame(shown)
    view = None
    if len(frame):
        caption = _caption(shown, outcome(task), raced=raced)
        view = figure_view(f"{task.slug}-finals", figures.finals(frame), caption, table, trials)
    choice = ""
    if selection and selection.reason:
        tied = count(len(selection.tie_set), "equally fast config")
        choice = f"Chosen among {tied} (within 1 %) by: {selection.reason}"
    return TaskFinals(choice, view, table)


def _row(finalist: Finalist) -> tuple[str, str, str, str, str, str, int, str]:
    record = finalist.record
    ratio = finalist.log_ratio
    return (
        record.stage,
        finalist.label,
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
