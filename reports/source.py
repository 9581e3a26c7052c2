"""One run as the subjects of a report read it: its tasks, trials and calibrations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from reports.quantity import clean
from reports.task_data import TaskData
from results_db import Store
from results_db.promotion_records import PromotionRecord
from results_db.range_outcomes import RangePart, list_shown
from results_db.stored_records import CalibrationRecord, RunInfo, TaskInfo, TrialRecord
from search_spaces.errors import TunerError


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


def load(
    store: Store,
    run_id: int | None = None,
    trials_of: Collection[int] | None = None,
    known: Mapping[int, TaskData] = MappingProxyType({}),
) -> RunData:
    """Read one run (None: the newest); raises `TunerError` when there is none.

    trials_of: the tasks whose trials are read; None for all. known: tasks by id as they were read
    before, which are returned where nothing has changed, with what was drawn of them.
    """
    if run_id is None:
        run_id = max((run.run_id for run in store.runs()), default=None)
    if run_id is None:
        hint = "start one with `tuner run quickstart`"
        raise TunerError("there is no run to report on", hint=hint)
    run = store.run(run_id)
    earlier = [r for r in store.runs(run.campaign, limit=1000) if r.run_id < run_id]
    previous = max(earlier, key=lambda other: other.run_id, default=None)
    read = _tasks(store, run_id, trials_of)
    tasks = tuple(old if (old := known.get(t.info.task_id)) == t else t for t in read)
    before = store.tasks(previous.run_id) if previous else ()
    return RunData(
        run=run,
        tasks=tasks,
        calibrations=_calibrations(store, run, tasks),
        previous=previous,
        previous_tasks=tuple(task for task in before if not task.left_out),
        timeline=store.timeline(run_id),
        promotions=tuple(store.promotions(run_id)),
    )


def read_again(store: Store, run: RunData, task_id: int) -> RunData:
    """A run with one of its tasks alone, as this one is now; with none if the task is left out."""
    info, trials = store.task(task_id), _in_order(store.trials(task_id))
    tasks = tuple(
        replace(task, info=info, trials=trials, drawn={})
        for task in run.tasks
        if task.info.task_id == task_id and not info.left_out
    )
    return RunData(run.run, tasks, run.calibrations)


def _tasks(store: Store, run_id: int, trials_of: Collection[int] | None) -> tuple[TaskData, ...]:
    declared = store.tasks(run_id)
    numbers = {info.task_id: number for number, info in enumerate(declared, 1)}
    infos = sorted(
        (info for info in declared if not info.left_out),
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
        read = trials_of is None or info.task_id in trials_of
        trials, number = store.trials(info.task_id) if read else (), numbers[info.task_id]
        tasks.append(TaskData(info, _in_order(trials), slug, label, number=number))
    return tuple(tasks)


def _calibrations(
    store: Store, run: RunInfo, tasks: Sequence[TaskData]
) -> tuple[CalibrationRecord, ...]:
    """Calibrations of workers that started during the run; else the last before the run's end."""
    found = []
    for fingerprint in sorted({task.info.key.device.fingerprint for task in tasks}):
        known = [
            record
            for record in store.calibrations(fingerprint)
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
    """The text, with a number if it is in `taken`; adds the result to `taken`."""
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
