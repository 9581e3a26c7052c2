"""What the database holds of lost trials: nothing of it is a result of the config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from results_db.records import TaskInfo, TrialFilter, TrialRecord
from search_spaces.records import Status
from workers.supervision import machine_faults

if TYPE_CHECKING:
    from results_db import Store


def lost(trial: TrialRecord) -> bool:
    """Whether a stored failure tells of the machine or of lost workers, not of its config."""
    failed = trial.status is not Status.CORRECT
    return failed and machine_faults.told_by(trial.message, trial.detail)


def kept(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that are results of their configs."""
    return [trial for trial in trials if not lost(trial)]


def resumed(store: Store, task: TaskInfo) -> list[TrialRecord]:
    """The trials of a resumed task; those that were lost are forgotten."""
    trials = store.trials(task.task_id)
    again = {trial.attempt_id for trial in trials if lost(trial)}
    if not again:
        return trials
    found = store.find_trials(TrialFilter(run_id=task.run_id))
    store.forget([each for each in found if each.attempt_id in again])
    return [trial for trial in trials if trial.attempt_id not in again]
