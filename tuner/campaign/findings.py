"""Findings of a finished run: tasks without a correct variant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results_db import Store, TaskSummary


def of_run(store: Store, run_id: int) -> Iterator[str]:
    """One line for every task of a run that has trials, none of them correct."""
    for task in store.overview(run_id):
        reason = why_none_correct(task)
        if reason:
            yield f"{task.kernel} {task.workload} on {task.device}: {reason}"


def why_none_correct(task: TaskSummary) -> str:
    """The commonest failure message where no trial of a task is correct; else empty."""
    if not task.failure:
        return ""
    return f"none of {task.trials} variants is correct; {task.failure} ({task.failures}x)"
