"""One run as the sections of a report read it: its tasks, trials and calibrations."""

from __future__ import annotations

from dataclasses import dataclass

from reports.ratio import finite
from results_db.records import BaselineRecord, CalibrationRecord, RunInfo, TaskInfo, TrialRecord
from search_spaces.records import Status
from workers import backends


def compiled(trial: TrialRecord) -> bool:
    """Whether a binary came out of the trial's build."""
    return bool(trial.binary_hash) or trial.registers is not None


@dataclass(frozen=True, slots=True)
class TaskData:
    """One task with its trials in the order they finished.

    slug: its anchor in the page. label: kernel and workload, and the device where
    another task is about the same; no two tasks of a run share one.
    """

    info: TaskInfo
    trials: tuple[TrialRecord, ...]
    slug: str
    label: str

    @property
    def kernel(self) -> str:
        return self.info.key.kernel

    @property
    def workload(self) -> str:
        return self.info.key.workload.key

    @property
    def device(self) -> str:
        """The device as people call it; a target alone where there is no device."""
        device = self.info.key.device
        return device.target if self.absent else device.name or device.target

    @property
    def absent(self) -> bool:
        """Whether variants were only compiled, for a device that is not here."""
        device = self.info.key.device
        backend = backends.spec_of_stored(device.kind)
        limits_only = backend.accelerator and not device.sm_count and not device.memory_bytes
        built = any(trial.source == "built" for trial in self.trials)
        return not backend.timed or (not self.timed and (built or limits_only))

    @property
    def correct(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is Status.CORRECT)

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.trials if trial.status is not Status.CORRECT)

    @property
    def timed(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.correct if finite(trial.median_us) is not None)

    @property
    def screened(self) -> tuple[TrialRecord, ...]:
        """Trials whose own samples were taken on the device in this run."""
        return tuple(t for t in self.trials if t.source == "measured" and t.samples_us)

    @property
    def fastest_trial(self) -> TrialRecord | None:
        """The fastest of the search, before any confirmation."""
        return min(self.timed, key=lambda trial: trial.median_us or 0.0, default=None)

    @property
    def state(self) -> str:
        """`confirmed`, `unconfirmed` (timed by the search only), `built` (never timed: no such
        device), `failed` (no config was correct) or `empty`."""
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
        """The fastest baseline that was correct and timed."""
        correct = (b for b in self.info.baselines if b.status is Status.CORRECT)
        able = [baseline for baseline in correct if finite(baseline.median_us)]
        return min(able, key=lambda baseline: baseline.median_us or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, its tasks, and the run of the same campaign before it, if any.

    calibrations: of each card and host that took part, the last one.
    """

    run: RunInfo
    tasks: tuple[TaskData, ...]
    calibrations: tuple[CalibrationRecord, ...] = ()
    previous: RunInfo | None = None
    previous_tasks: tuple[TaskInfo, ...] = ()

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for task in self.tasks for trial in task.trials)
