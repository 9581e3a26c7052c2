"""The history of a kernel as a figure with its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from reports import figures
from reports.parts.view import FigureView, Table, figure_view, foremost
from reports.quantity import NOTHING, count, duration, factor
from results_db.task_history import History, RunResult
from tuner.base.log_ratio import Verdict


def view_history(kernel: str, histories: Sequence[History]) -> FigureView | None:
    """The times of a kernel's workloads over runs; None where no two results can be compared."""
    lines = [line for each in histories if len(line := list(_list_points(each))) > 1]
    if not lines:
        return None
    chosen, rest = foremost(lines, lambda line: max(abs(row["relative"] - 1) for row in line))
    rows = [row for line in chosen for row in line]
    steps = sum(bool(row["step"]) for line in lines for row in line)
    caption = (
        f"{kernel}: {count(steps, 'step')} in {count(len(lines), 'workload')}. A triangle begins a "
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
    return figure_view("times", figures.history(pd.DataFrame(rows)), caption, table)


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
            "started": result.run.started_at,
            "relative": time_us / timed[-1][1],
            "step": (Verdict.SLOWER if step.change.value > 0 else Verdict.FASTER) if step else "",
            "label": f"run {result.run.run_id}, {duration(time_us)} {note}",
            "note": note or NOTHING,
        }


def _find_time(result: RunResult) -> float | None:
    return result.normalised_us or (result.ships.median_us if result.ships else None)
