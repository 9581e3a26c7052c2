"""One run as the sections of a report read it: its tasks, trials and calibrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from reports.quantity import clean, finite, pairs
from results_db.promotion_records import PromotionRecord
from results_db.range_outcomes import RangePart, list_shown
from results_db.shipped import fastest_baseline
from results_db.stored_records import (
    BaselineRecord,
    CalibrationRecord,
    RunInfo,
    Source,
    TaskInfo,
    TrialRecord,
)
from search_spaces.records import Status
from workers import backend_kinds


def compiled(trial: TrialRecord) -> bool:
    """Whether the trial's build produced a binary."""
    return bool(trial.binary_hash) or trial.registers is not None


@dataclass(frozen=True)  # without slots, for what is kept after its first use
class TaskData:
    """One task of the run."""

    info: TaskInfo
    #: In the order in which they finished.
    trials: tuple[TrialRecord, ...]
    #: Its anchor in the page.
    slug: str
    #: Kernel and workload, with the device where needed. Labels are unique in a run.
    label: str
    #: The workload with the sizes that its config serves, of a task that stands for them.
    served: str = ""

    @property
    def kernel(self) -> str:
        return self.info.key.kernel

    @property
    def workload(self) -> str:
        return self.served or self.info.key.workload.key

    @property
    def device(self) -> str:
        """Name of the device; the target where the device is absent."""
        device = self.info.key.device
        return device.target if self.absent else device.name or device.target

    @cached_property
    def absent(self) -> bool:
        """Whether the device is absent, so that variants were only compiled."""
        device = self.info.key.device
        backend = backend_kinds.spec_of_stored(device.kind)
        limits_only = backend.accelerator and not device.sm_count and not device.memory_bytes
        built = any(trial.source == Source.BUILT for trial in self.trials)
        return not backend.timed or (not self.timed and (built or limits_only))

    @cached_property
    def correct(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is Status.CORRECT)

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is not Status.CORRECT)

    @cached_property
    def timed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.correct if finite(trial.median_us) is not None)

    @cached_property
    def configs(self) -> tuple[str, ...]:
        """The config of each trial as text."""
        return tuple(clean(pairs(trial.config)) for trial in self.trials)

    @property
    def screened(self) -> tuple[TrialRecord, ...]:
        """Trials that were timed on the device in this run."""
        return tuple(t for t in self.trials if t.source == Source.MEASURED and t.samples_us)

    @property
    def fastest_trial(self) -> TrialRecord | None:
        """The fastest trial of the search, before the confirmation."""
        return min(self.timed, key=lambda trial: trial.median_us or 0.0, default=None)

    @property
    def state(self) -> str:
        """`confirmed`, `unconfirmed` (timed by the search only), `built` (the device is absent),
        `failed` (no config was correct) or `empty`."""
        selection = self.info.selection
        if not self.trials and selection is None:
            return "empty"
        if self.absent:
            return "built" if any(map(compiled, self.trials)) else "failed"
        if selection is not None and finite(selection.median_us) is not None:
            return "confirmed"
        return "unconfirmed" if self.timed else "failed"

    @property
    def fastest_baseline(self) -> BaselineRecord | None:
        """The fastest correct baseline."""
        return fastest_baseline(self.info.baselines)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run with its tasks, and the previous run of the same campaign."""

    run: RunInfo
    tasks: tuple[TaskData, ...]
    #: The last calibration of each card and host in the run.
    calibrations: tuple[CalibrationRecord, ...] = ()
    #: The previous run of the campaign; None for the first.
    previous: RunInfo | None = None
    previous_tasks: tuple[TaskInfo, ...] = ()
    #: The time line of a run with a trace, as `tuner.traces.timeline` makes it.
    timeline: Mapping[str, Any] | None = None
    #: What `tuner promote` decided about its results.
    promotions: tuple[PromotionRecord, ...] = ()

    @property
    def listed_tasks(self) -> tuple[TaskData, ...]:
        """What readers compare: the tasks, of a range those that stand for the parts of it."""
        known, found = {task.info.task_id: task for task in self.tasks}, []
        for shown in list_shown([task.info for task in self.tasks]):
            if isinstance(shown, RangePart):
                found.append(_describe_part(known[shown.task.task_id], shown))
            else:
                found.append(known[shown.task_id])
        unconfirmed = (t for t in self.tasks if t.info.place and t.state != "confirmed")
        return (*found, *unconfirmed)

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for task in self.tasks for trial in task.trials)


def _describe_part(task: TaskData, part: RangePart) -> TaskData:
    assert task.info.place is not None
    served = task.info.place.describe_part(task.info.key.workload, part.low, part.high)
    return replace(task, served=served, label=clean(f"{task.kernel} {served}"))
