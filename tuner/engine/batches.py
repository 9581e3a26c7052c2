"""Which ready trials are measured together."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.engine.jobs import Screening, TrialMeasurement, Verification
from tuner.engine.task import Task
from tuner.engine.trial import Trial, TrialState

#: Candidates of one job: enough to share the incumbent's samples, few enough to answer soon.
_BATCH = 16


def next_batch(task: Task, worker_id: str, idle: int = 1) -> TrialMeasurement | None:
    """The next job for trials of the search, or None. The trials are shared by `idle` devices.

    Trials with a known time go first, for they need no incumbent and may become one. Without an
    incumbent, one trial at a time is timed: how long a hanging one may be silent is not known yet.
    While the incumbent's artifact is being rebuilt, nothing is screened.
    """
    search = task.search
    ready = search.order_ready()
    if not ready:
        return None
    if task.spec.compile_only:
        return Verification(task, worker_id, tuple(ready[:1]))
    if kept := [trial for trial in ready if search.kept_time(trial)]:
        return Verification(task, worker_id, _share(kept, idle))
    incumbent = search.incumbent
    if incumbent is None:
        first = () if search.trials.count(TrialState.MEASURING) else tuple(ready[:1])
        return Screening(task, worker_id, first, None) if first else None
    if incumbent.artifact is None:
        return None
    return Screening(task, worker_id, _share(ready, idle), incumbent)


def _share(ready: Sequence[Trial], idle: int) -> tuple[Trial, ...]:
    """One device's share of the trials. Trials that must be alone are left to the last."""
    together = [trial for trial in ready if not trial.alone]
    share = -(-len(together) // max(1, idle))
    return tuple(together[: min(share, _BATCH)] or ready[:1])
