"""The regressions of a database as a listing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.base.log_ratio import Verdict
from tuner.views.column import Column, estimate_columns

if TYPE_CHECKING:
    from results_db import Store
    from results_db.promotion_records import RegressionRecord
    from results_db.stored_records import RunInfo, TaskInfo


@dataclass(frozen=True, slots=True)
class FoundRegression:
    """A regression with the tasks before and behind it, and the run in which it begins."""

    record: RegressionRecord
    task: TaskInfo
    former: TaskInfo
    run: RunInfo

    def describe_state(self) -> str:
        known = self.record.acknowledged_at is not None
        return f"{self.record.state}, acknowledged" if known else self.record.state


REGRESSIONS: tuple[Column[FoundRegression], ...] = (
    Column("regression", lambda each: each.record.id),
    Column("kernel", lambda each: each.task.key.kernel),
    Column("workload", lambda each: each.task.key.workload.key),
    Column("device", lambda each: each.task.key.device.name),
    Column("since", lambda each: each.task.run_id, lambda each: f"run {each.task.run_id}"),
    Column("revision", lambda each: each.run.environment.get("git") or None),
    Column("before", lambda each: each.former.run_id, heading=None),
    *estimate_columns(("change", "low", "high"), lambda each: each.record.log_ratio, "+.1%"),
    Column(
        "state",
        lambda each: each.record.state,
        FoundRegression.describe_state,
        tone=lambda each: Verdict.SLOWER if each.record.is_open else "",
    ),
    Column("reason", lambda each: each.record.reason),
    Column("found_at", lambda each: each.record.found_at, heading=None),
    Column("decided_at", lambda each: each.record.decided_at, heading=None),
    Column("notified_at", lambda each: each.record.notified_at, heading=None),
    Column("acknowledged_at", lambda each: each.record.acknowledged_at, heading=None),
)


def list_regressions(store: Store) -> list[FoundRegression]:
    """All regressions that are stored, newest first."""
    found = []
    for each in store.regressions():
        task = store.task(each.task_id)
        former, run = store.task(each.former_task_id), store.run(task.run_id)
        found.append(FoundRegression(each, task, former, run))
    return found
