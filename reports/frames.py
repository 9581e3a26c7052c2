"""The data frames of the figures, one function per figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from reports.finalists import Finalist
from reports.quantity import clean, finite, pairs, plain
from reports.run_data import TaskData
from results_db.stored_records import Source, TrialRecord
from search_spaces.records import Value
from search_spaces.statistics import relative_iqr

_MOST_VALUES = 10


def convergence_frame(task: TaskData) -> pd.DataFrame:
    """One row per trial: trial, device_s (cumulative), median_us, best_us, label."""
    rows, spent = [], 0.0
    for place, trial in enumerate(task.trials, start=1):
        if trial.source != Source.REUSED:
            spent += finite(trial.device_s) or 0.0
        rows.append((place, spent, _time(trial), clean(pairs(trial.config))))
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
    names = sorted({name for trial in timed for name in trial.config})
    rows = []
    for name in names:
        keys = [_key(trial.config.get(name)) for trial in timed]
        texts = _groups(keys)
        if len(set(texts.values())) < 2:
            continue
        order = {text: place for place, text in enumerate(dict.fromkeys(texts.values()))}
        labels = [texts[key] for key in keys]
        rows += [
            (clean(name), clean(labels[place]), slowdowns[place], timed[place].number, place)
            for place in sorted(range(len(timed)), key=lambda place: order[labels[place]])
        ]
    columns = ["parameter", "value", "slowdown", "trial", "place"]
    # Iterating over a column of pandas' own strings is slow.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype({"slowdown": float, "trial": int, "place": int})


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
