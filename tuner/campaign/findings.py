"""What a finished run found that somebody should look at: tasks of which nothing was right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results_db import Store, TaskSummary


def of_run(store: Store, run_id: int) -> Iterator[str]:
    """One line for every task of a run that has trials and not one correct among them."""
    for task in store.overview(run_id):
        reason = barren(task)
        if reason:
            yield f"{task.kernel} {task.workload} on {task.device}: {reason}"


def barren(task: TaskSummary) -> str:
    """Why none of a task's trials is correct, by the commonest message; empty where one is."""
    if not task.failure:
        return ""
    return f"none of {task.trials} variants is correct; {task.failure} ({task.failures}x)"
