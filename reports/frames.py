"""The data frames of the figures, one function per figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import pandas as pd

from reports.finalists import Finalist
from reports.quantity import clean, finite, plain
from reports.run_data import TaskData
from results_db.stored_records import Source, TrialRecord
from search_spaces.records import Status, Value
from tuner.base.statistics import relative_iqr

#: Least ln of the ratio of two errors that are not alike.
_UNLIKE = 0.1
_MOST_VALUES = 10


def convergence_frame(task: TaskData) -> pd.DataFrame:
    """One row per trial: trial, device_s (cumulative), median_us, best_us, label."""
    rows, spent = [], 0.0
    for place, (trial, config) in enumerate(zip(task.trials, task.configs, strict=True), start=1):
        if trial.source != Source.REUSED:
            spent += finite(trial.device_s) or 0.0
        rows.append((place, spent, _time(trial), config))
    frame = pd.DataFrame(rows, columns=["trial", "device_s", "median_us", "label"])
    frame["best_us"] = frame["median_us"].astype(float).cummin().ffill()
    return frame


def parameters_frame(task: TaskData) -> pd.DataFrame:
    """One row per timed trial and varying parameter: parameter, value, slowdown, trial, place.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    timed = [trial for trial in task.timed if trial.median_us]
    fastest = min((_time(trial) for trial in timed), default=1.0)
    slowdowns = [_time(trial) / fastest for trial in timed]
    rows = []
    for name, labels in label_values(timed).items():
        order = {text: place for place, text in enumerate(labels.shown)}
        rows += [
            (name, labels.of[place], slowdowns[place], timed[place].number, place)
            for place in sorted(range(len(timed)), key=lambda place: order[labels.of[place]])
        ]
    columns = ["parameter", "value", "slowdown", "trial", "place"]
    # Iterating over a column of pandas' own strings is slow.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype({"slowdown": float, "trial": int, "place": int})


def pair_frame(task: TaskData, across: str, down: str) -> pd.DataFrame:
    """One row per pair of values of two varying parameters: across, down, best, mark, trials.

    best: the least time over that of the fastest trial. A pair without a timed trial is
    `infeasible` where all of its trials exceed the device's limits, `failed`, `not timed` or
    `not tried`.
    """
    labels = label_values(task.trials)
    times = [_time(trial) if trial.status is Status.CORRECT else math.nan for trial in task.trials]
    fastest = min((time for time in times if time > 0), default=1.0)
    cells: dict[tuple[str, str], list[int]] = {
        pair: [] for pair in product(labels[across].shown, labels[down].shown)
    }
    for place, pair in enumerate(zip(labels[across].of, labels[down].of, strict=True)):
        cells[pair].append(place)
    rows = []
    for pair, places in cells.items():
        best = min((times[at] for at in places if times[at] > 0), default=math.nan)
        mark = "" if best > 0 else _mark_untimed({task.trials[at].status for at in places})
        rows.append((*pair, best / fastest, mark, len(places)))
    columns = ["across", "down", "best", "mark", "trials"]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"best": float, "trials": int})


def _mark_untimed(statuses: set[Status]) -> str:
    if not statuses:
        return "not tried"
    if Status.CORRECT in statuses:
        return "not timed"
    return "infeasible" if statuses == {Status.CONSTRAINTS} else "failed"


def errors_frame(task: TaskData, most: int) -> tuple[str, pd.DataFrame]:
    """One row per timed trial with an error: value, median_us, error, trial.

    The value is that of the parameter that explains most of the error's variance, which comes
    first; parameters with more than `most` values are left out. Empty where errors are alike.
    """
    trials = [t for t in task.timed if t.median_us and (finite(t.error) or 0) > 0]
    logs = [math.log(trial.error or 1.0) for trial in trials]
    frame = pd.DataFrame(columns=["value", "median_us", "error", "trial"])
    if not logs or max(logs) - min(logs) < _UNLIKE:
        return "", frame
    labels = {
        name: found for name, found in label_values(trials).items() if len(found.shown) <= most
    }
    if not labels:
        return "", frame
    name = max(labels, key=lambda name: _explain(labels[name].of, logs))
    values = labels[name]
    order = {text: place for place, text in enumerate(values.shown)}
    rows = sorted(
        (order[text], text, trial.median_us, trial.error, trial.number)
        for text, trial in zip(values.of, trials, strict=True)
    )
    return name, pd.DataFrame([row[1:] for row in rows], columns=frame.columns)


def _explain(labels: Sequence[str], values: Sequence[float]) -> float:
    """The sum of squares between groups of values."""
    mean = fmean(values)
    groups: dict[str, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        groups.setdefault(label, []).append(value)
    return sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())


def noise_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per trial with at least four samples: task, spread (IQR / median)."""
    rows = [
        (task.label, spread)
        for task in tasks
        for trial in task.timed
        if trial.source == Source.MEASURED and (spread := relative_iqr(trial.samples_us))
    ]
    return pd.DataFrame(rows, columns=["task", "spread"])


def depths_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per task and number of samples per trial: task, samples, share of the trials."""
    rows = []
    for task in tasks:
        counts = Counter(len(trial.samples_us) for trial in task.screened)
        total = sum(counts.values())
        rows += [(task.label, depth, counts[depth] / total) for depth in sorted(counts)]
    return pd.DataFrame(rows, columns=["task", "samples", "share"])


def finals_frame(finalists: Sequence[Finalist]) -> pd.DataFrame:
    """One row per timed finalist: label, place, ln, low, high (NaN where unknown), passes."""
    rows = [
        (f.label, f.place, ratio.value, *(ratio.ends or (None, None)), len(f.record.samples_us))
        for f in finalists
        if (ratio := f.log_ratio) is not None
    ]
    frame = pd.DataFrame(rows, columns=["label", "place", "ln", "low", "high", "passes"])
    return frame.astype({"ln": float, "low": float, "high": float})


def failures_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per task and status of its failures: task, status, count."""
    rows = []
    for task in tasks:
        counts: dict[str, int] = {}
        for trial in task.failed:
            counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
        rows += [(task.label, status, counts[status]) for status in sorted(counts)]
    return pd.DataFrame(rows, columns=["task", "status", "count"])


def static_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per compiled variant: group, registers, shared_kib, spill_bytes."""
    rows = [
        (
            clean(f"{task.kernel} for {task.info.key.device.target}"),
            trial.registers,
            None if trial.shared_bytes is None else trial.shared_bytes / 1024,
            trial.spill_bytes,
        )
        for task in tasks
        for trial in task.trials
        if trial.registers is not None
    ]
    return pd.DataFrame(rows, columns=["group", "registers", "shared_kib", "spill_bytes"])


def _time(trial: TrialRecord) -> float:
    value = finite(trial.median_us)
    return math.nan if value is None else value


@dataclass(frozen=True, slots=True)
class ValueLabels:
    """The labels of one parameter's values over some trials."""

    #: In the order of the figure.
    shown: tuple[str, ...]
    #: One per trial.
    of: tuple[str, ...]


def label_values(trials: Sequence[TrialRecord]) -> dict[str, ValueLabels]:
    """The labels of each parameter that varies, by its name, in the order of names.

    A numeric parameter with more than ten values is grouped into ranges with about equally many
    trials.
    """
    found = {}
    for name in sorted({name for trial in trials for name in trial.config}):
        keys = [_key(trial.config.get(name)) for trial in trials]
        texts = {key: clean(text) for key, text in _groups(keys).items()}
        shown = tuple(dict.fromkeys(texts.values()))
        if len(shown) > 1:
            found[clean(name)] = ValueLabels(shown, tuple(texts[key] for key in keys))
    return found


def _key(value: Value) -> tuple[str, Value]:
    """The identity of a value: True differs from 1, but 1 equals 1.0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number" if number else type(value).__name__), value


def _groups(keys: list[tuple[str, Value]]) -> dict[tuple[str, Value], str]:
    """The label of each value by its key (see `_key`), in the order of the figure."""
    known = set(keys)
    numbers = sorted(
        float(value) for kind, value in known if kind == "number" and value is not None
    )
    others = sorted((key for key in known if key[0] != "number"), key=str)
    shown: dict[tuple[str, Value], str] = {
        ("number", number): f"{number:.12g}" for number in numbers
    }
    if len(numbers) > _MOST_VALUES:
        ranked = sorted(
            float(value) for kind, value in keys if kind == "number" and value is not None
        )
        cuts = sorted({ranked[len(ranked) * step // 8] for step in range(8)})
        edges = [*cuts[1:], math.inf]
        for low, edge in zip(cuts, edges, strict=True):
            members = [number for number in numbers if low <= number < edge]
            ends = list(dict.fromkeys((plain(members[0]), plain(members[-1]))))
            shown |= {("number", number): " to ".join(ends) for number in members}
    return {**shown, **{key: f"{key[1]}" for key in others}}
