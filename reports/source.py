"""Where a report's records come from, and the run as its sections see it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reports.quantity import clean
from reports.stats import finite
from results_db.records import BaselineRecord, CalibrationRecord, RunInfo, TaskInfo, TrialRecord
from search_spaces.errors import TunerError
from search_spaces.records import Status
from workers import backends


class ReportSource(Protocol):
    """What a report reads; `results_db.Store` is one."""

    def runs(self, campaign: str | None = None, limit: int = 50) -> Sequence[RunInfo]: ...

    def run(self, run_id: int) -> RunInfo: ...

    def tasks(self, run_id: int) -> Sequence[TaskInfo]: ...

    def trials(self, task_id: int) -> Sequence[TrialRecord]: ...

    def calibrations(self, device_fingerprint: str) -> Sequence[CalibrationRecord]: ...


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


def load(source: ReportSource, run_id: int | None = None) -> RunData:
    """Read one run (None: the newest); raises `TunerError` when there is none."""
    if run_id is None:
        run_id = max((run.run_id for run in source.runs()), default=None)
    if run_id is None:
        raise TunerError(
            "there is no run to report on", hint="start one with `tuner run quickstart`"
        )
    run = source.run(run_id)
    earlier = [r for r in source.runs(run.campaign, limit=1000) if r.run_id < run_id]
    previous = max(earlier, key=lambda other: other.run_id, default=None)
    tasks = _tasks(source, run_id)
    return RunData(
        run=run,
        tasks=tasks,
        calibrations=_calibrations(source, run, tasks),
        previous=previous,
        previous_tasks=tuple(source.tasks(previous.run_id)) if previous else (),
    )


def _tasks(source: ReportSource, run_id: int) -> tuple[TaskData, ...]:
    infos = sorted(
        source.tasks(run_id),
        key=lambda info: (
            info.key.kernel,
            info.key.device.target,
            _natural(info.key.workload.key),
            info.task_id,
        ),
    )
    slugs: set[str] = set()
    labels: set[str] = set()
    alike = Counter((info.key.kernel, info.key.workload) for info in infos)
    tasks = []
    for info in infos:
        key = info.key
        slug = _new(_slug(f"task-{key.kernel}-{key.workload.key}-{key.device.target}"), slugs)
        several = alike[key.kernel, key.workload] > 1
        where = f" on {key.device.name or key.device.target}" if several else ""
        label = _new(clean(f"{key.kernel} {key.workload.key}{where}"), labels)
        tasks.append(TaskData(info, _in_order(source.trials(info.task_id)), slug, label))
    return tuple(tasks)


def _calibrations(
    source: ReportSource, run: RunInfo, tasks: Sequence[TaskData]
) -> tuple[CalibrationRecord, ...]:
    """Those of workers that started during the run; where none did, the last before its end."""
    found = []
    for fingerprint in sorted({task.info.key.device.fingerprint for task in tasks}):
        known = [
            record
            for record in source.calibrations(fingerprint)
            if run.finished_at is None or record.measured_at <= run.finished_at
        ]
        known.sort(key=lambda record: record.measured_at, reverse=True)
        during = [record for record in known if record.measured_at >= run.started_at]
        newest: dict[tuple[str, str], CalibrationRecord] = {}
        for record in during or known[:1]:
            newest.setdefault((record.host, record.device.uuid), record)
        found += [newest[key] for key in sorted(newest)]
    return tuple(found)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which M=512 comes before M=4096."""
    parts = re.findall(r"(\d{1,18})|(\D+|\d+)", text)
    return [(0, int(number), "") if number else (1, 0, word) for number, word in parts]


def _slug(text: str) -> str:
    """An anchor of letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:120]


def _new(text: str, taken: set[str]) -> str:
    """The text, numbered where it is taken already; it is taken afterwards."""
    name, count = text, 1
    while name in taken:
        count += 1
        name = f"{text}-{count}"
    taken.add(name)
    return name


def _in_order(trials: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    if any(trial.finished_at is None for trial in trials):
        return tuple(sorted(trials, key=lambda trial: trial.number))
    return tuple(
        sorted(trials, key=lambda trial: (trial.finished_at.timestamp(), trial.number))  # type: ignore[union-attr]
    )
