"""What a finished run found that somebody should look at: tasks of which nothing was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from search_spaces.records import Status

if TYPE_CHECKING:
    from results_db import Store
    from results_db.records import TrialRecord


def of_run(store: Store, run_id: int) -> Iterator[str]:
    """One line for every task of a run that has trials and not one correct among them."""
    for task in store.tasks(run_id):
        reason = barren(store.trials(task.task_id))
        if reason:
            key = task.key
            yield f"{key.kernel} {key.workload.key} on {key.device.name}: {reason}"


def barren(trials: Sequence[TrialRecord]) -> str:
    """Why none of the trials is correct, by the commonest message; empty where one is."""
    if not trials or any(trial.status is Status.CORRECT for trial in trials):
        return ""
    failures = Counter(f"{trial.status}: {trial.message}" for trial in trials)
    ((commonest, count),) = failures.most_common(1)
    return f"none of {len(trials)} variants is correct; {commonest} ({count}x)"
