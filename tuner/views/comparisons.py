"""The listing of two runs or tables, task by task."""

from __future__ import annotations

from collections.abc import Sequence

from results_db.run_comparison import TaskComparison
from tuner.base.log_ratio import Verdict
from tuner.views.column import Column, estimate_columns, format_estimate
from tuner.views.units import format_us


def find_change(each: TaskComparison) -> float | None:
    """The relative change of the times: 0.03 is 3 % slower."""
    a_us, b_us = each.times_us
    return b_us / a_us - 1 if a_us and b_us is not None else None


COMPARISON: tuple[Column[TaskComparison], ...] = (
    Column("kernel", lambda each: each.task.key.kernel),
    Column("workload", lambda each: each.task.key.workload.key),
    Column("device", lambda each: each.task.key.device.name),
    Column("a_us", lambda each: each.times_us[0], lambda each: format_us(each.times_us[0]), "a"),
    Column("b_us", lambda each: each.times_us[1], lambda each: format_us(each.times_us[1]), "b"),
    Column("change", find_change, lambda each: format_estimate("+.1%", find_change(each))),
    *estimate_columns(("ratio", "low", "high"), lambda each: each.log_ratio, ".3f"),
    Column("verdict"),
    Column("why"),
)


def count_verdicts(found: Sequence[TaskComparison]) -> str:
    """How many comparisons have each verdict, in words."""
    verdicts = [each.verdict for each in found]
    counts = [f"{verdicts.count(each)} {each}" for each in Verdict]
    return f"{', '.join(counts)}; {verdicts.count(None)} tasks in one of them only"
