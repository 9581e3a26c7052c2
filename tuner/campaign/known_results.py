"""Stored trials that a run may reuse: all but those that a fault of the machine ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from results_db.stored_records import TaskInfo, TrialFilter, TrialRecord
from search_spaces.records import Status
from workers.supervision import machine_faults

if TYPE_CHECKING:
    from results_db import Store


def lost(trial: TrialRecord) -> bool:
    """Whether a stored failure is due to the machine or a lost worker and not to its config."""
    failed = trial.status is not Status.CORRECT
    return failed and machine_faults.is_named_in(trial.message, trial.detail)


def drop_lost(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials without those that were lost."""
    return [trial for trial in trials if not lost(trial)]


def reload_trials(store: Store, task: TaskInfo) -> list[TrialRecord]:
    """The trials of a resumed task; lost ones are deleted from the database."""
    trials = store.trials(task.task_id)
    again = {trial.attempt_id for trial in trials if lost(trial)}
    if not again:
        return trials
    found = store.find_trials(TrialFilter(run_id=task.run_id))
    store.forget([each for each in found if each.attempt_id in again])
    return [trial for trial in trials if trial.attempt_id not in again]
