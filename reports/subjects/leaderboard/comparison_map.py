"""The map of task by alternative: how much faster the chosen config is, one cell each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reports.quantity import finite, times
from reports.task_data import TaskData
from reports.view import ListingCell
from results_db.stored_records import BaselineRecord
from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio, Verdict

_DEFAULT = "default config"
#: ln of the ratios from which a cell has the second and the third depth of its colour.
_DEPTHS = (math.log(1.05), math.log(1.25))


def map_comparisons(tasks: Sequence[TaskData]) -> dict[str, Any] | None:
    """The columns, and the cells of each task with a present device; None if none is confirmed."""
    shown = [task for task in tasks if task.verdict != "not timed"]
    if not any(task.confirmed for task in shown):
        return None
    names = list(dict.fromkeys(b.name for task in shown for b in task.info.baselines))
    rows = [(task, _make_cells(task, names) if task.confirmed else []) for task in shown]
    return {"columns": [_DEFAULT, *names], "rows": rows}


def _make_cells(task: TaskData, names: list[str]) -> list[ListingCell]:
    known = {baseline.name: baseline for baseline in task.info.baselines}
    cells = [_make_cell(task.over_default, _DEFAULT)]
    for name in names:
        baseline = known.get(name)
        cells.append(_compare(task, baseline) if baseline else ListingCell("", meaning="none"))
    return cells


def _compare(task: TaskData, baseline: BaselineRecord) -> ListingCell:
    if baseline.status is not Status.CORRECT or finite(baseline.median_us) is None:
        why = "not timed" if baseline.status is Status.CORRECT else f"failed: {baseline.status}"
        return ListingCell("✕", meaning=f"{baseline.name} {why}")
    return _make_cell(task.over(baseline), baseline.name, fastest=baseline is task.baseline)


def _make_cell(over: LogRatio | None, name: str, *, fastest: bool = False) -> ListingCell:
    if over is None:
        return ListingCell("", meaning=f"{name}: unknown")
    verdict = (-over).verdict()
    mark = " =" if verdict is Verdict.SAME else ""
    best = ", the fastest correct baseline" if fastest else ""
    words = {Verdict.SAME: "the same as", Verdict.UNDECIDED: "undecided against"}
    said = words.get(verdict, f"{verdict} than")
    tone = _choose_tone(over, verdict) + " fastest" * fastest
    meaning = f"{times(over)}: {said} {name}{best}"
    return ListingCell(f"{times(over)}{mark}", tone=tone, meaning=meaning)


def _choose_tone(over: LogRatio, verdict: Verdict) -> str:
    if verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return "even"
    depth = 1 + sum(abs(over.value) >= edge for edge in _DEPTHS)
    return f"{'ahead' if verdict is Verdict.FASTER else 'behind'}-{depth}"
