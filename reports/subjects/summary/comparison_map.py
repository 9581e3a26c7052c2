"""The map of task by alternative: how much faster the chosen config is, one cell each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.outcome import TaskOutcome
from reports.quantity import finite, times
from reports.source import TaskData
from results_db.stored_records import BaselineRecord
from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio, Verdict

_DEFAULT = "default config"
#: ln of the ratios from which a cell has the second and the third depth of its colour.
_DEPTHS = (math.log(1.05), math.log(1.25))


@dataclass(frozen=True, slots=True)
class MapCell:
    """One task against one alternative."""

    text: str
    #: Class of its colour; empty for none.
    tone: str = ""
    #: What the cell says, in words.
    meaning: str = ""
    #: Whether the alternative is the fastest correct baseline of the task.
    fastest: bool = False


@dataclass(frozen=True, slots=True)
class MapRow:
    """One task; without cells where nothing is confirmed."""

    task: TaskData
    result: TaskOutcome
    cells: list[MapCell]


@dataclass(frozen=True, slots=True)
class ComparisonMap:
    """All tasks with a present device."""

    columns: list[str]
    rows: list[MapRow]


def map_comparisons(outcomes: list[tuple[TaskData, TaskOutcome]]) -> ComparisonMap | None:
    """The map; None where nothing is confirmed."""
    shown = [(task, result) for task, result in outcomes if result.verdict != "not timed"]
    if not any(result.confirmed for _, result in shown):
        return None
    names = list(dict.fromkeys(b.name for task, _ in shown for b in task.info.baselines))
    rows = [
        MapRow(task, result, _make_cells(task, result, names) if result.confirmed else [])
        for task, result in shown
    ]
    return ComparisonMap([_DEFAULT, *names], rows)


def _make_cells(task: TaskData, result: TaskOutcome, names: list[str]) -> list[MapCell]:
    known = {baseline.name: baseline for baseline in task.info.baselines}
    cells = [_make_cell(result.over_default, _DEFAULT)]
    for name in names:
        baseline = known.get(name)
        cells.append(_compare(result, baseline) if baseline else MapCell("", meaning="none"))
    return cells


def _compare(result: TaskOutcome, baseline: BaselineRecord) -> MapCell:
    if baseline.status is not Status.CORRECT or finite(baseline.median_us) is None:
        why = "not timed" if baseline.status is Status.CORRECT else f"failed: {baseline.status}"
        return MapCell("✕", meaning=f"{baseline.name} {why}")
    return _make_cell(result.over(baseline), baseline.name, fastest=baseline is result.baseline)


def _make_cell(over: LogRatio | None, name: str, *, fastest: bool = False) -> MapCell:
    if over is None:
        return MapCell("", meaning=f"{name}: unknown")
    verdict = (-over).verdict()
    mark = " =" if verdict is Verdict.SAME else ""
    best = ", the fastest correct baseline" if fastest else ""
    words = {Verdict.SAME: "the same as", Verdict.UNDECIDED: "undecided against"}
    said = words.get(verdict, f"{verdict} than")
    meaning = f"{times(over)}: {said} {name}{best}"
    return MapCell(f"{times(over)}{mark}", _choose_tone(over, verdict), meaning, fastest)


def _choose_tone(over: LogRatio, verdict: Verdict) -> str:
    if verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return "even"
    depth = 1 + sum(abs(over.value) >= edge for edge in _DEPTHS)
    return f"{'ahead' if verdict is Verdict.FASTER else 'behind'}-{depth}"
