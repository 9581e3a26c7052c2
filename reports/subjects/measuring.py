"""How it was measured: methods, device time, samples, calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from reports.quantity import (
    NOTHING,
    count,
    finite,
    join_words,
    micros,
    pairs,
    percent,
    plain,
    seconds,
)
from reports.source import RunData
from reports.task_data import TaskData
from reports.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, stack_bars
from reports.view import FigureView, ListingCell, Section, SectionSpec, Table, figure_view, foremost
from results_db.stored_records import Source, TrialRecord
from tuner.base.statistics import finite_times

_CALIBRATION = (
    *("device", "card", "host", "measured at", "clock resolution, µs", "empty measurement, µs"),
    *("cache flush, µs", "copy, GB/s", "matrix products, TFLOP/s"),
)
# Five colours and eight patterns distinguish forty numbers of samples.
_COLOURS = (GREY, BLUE, ORANGE, GREEN, PURPLE)
_PATTERNS = ("", "/", "x", ".", "-", "\\", "+", "|")


def build(data: RunData) -> Section | None:
    """The section; None for a run without measurements and calibrations."""
    tasks = [task for task in data.tasks if _select_measured(task)]
    if not tasks and not data.calibrations:
        return None
    trials = [(task, trial) for task in tasks for trial in _select_measured(task)]
    context = {
        "tiles": _tiles(data, [trial for _, trial in trials]),
        "rows": [(task, _cells(task)) for task in tasks],
        "calibrations": _calibrations(data) if data.calibrations else None,
        "unstable": _unstable(trials),
        "spilling": _spilling(trials),
    }
    screened = [task for task in tasks if task.screened]
    views = [_depths(screened)] if screened else []
    return Section("measuring", "How it was measured", "measuring.html.j2", context, views, True)


def _select_measured(task: TaskData) -> list[TrialRecord]:
    """Trials that held the device in this run."""
    if task.absent:
        return []
    return [trial for trial in task.trials if trial.source == Source.MEASURED and trial.method]


def _is_void(trial: TrialRecord) -> bool:
    return bool(trial.clocks.get("throttled"))


def _is_repeated(trial: TrialRecord) -> bool:
    return bool(trial.clocks.get("repeated"))


def _is_capped(trial: TrialRecord) -> bool:
    return "power_cap" in f"{trial.clocks.get('throttle', '')}".replace(" ", "_")


def _cells(task: TaskData) -> list[ListingCell]:
    """The cells of the columns of the template."""
    trials = _select_measured(task)
    per_config_s, share = _device_time(trials)
    repeated, void = sum(map(_is_repeated, trials)), sum(map(_is_void, trials))
    checked = [trial.deterministic for trial in trials if trial.deterministic is not None]
    methods, caches = {trial.method for trial in trials}, {t.cache for t in trials if t.cache}
    return [
        ListingCell(join_words(sorted(methods))),
        ListingCell(join_words(sorted(caches)) or NOTHING),
        ListingCell(len(task.screened)),
        ListingCell(
            NOTHING if per_config_s is None else plain(1e3 * per_config_s),
            lines=() if share is None else (f"{percent(share)} timing",),
            sort="" if per_config_s is None else f"{per_config_s}",
        ),
        ListingCell(repeated, lines=(f"{void} again",) if void else (), sort=f"{repeated}"),
        ListingCell(sum(map(_is_capped, trials))),
        ListingCell(
            checked.count(False) if checked else NOTHING,
            lines=(f"of {len(checked)}",) if checked else (),
            sort=f"{checked.count(False)}",
        ),
        ListingCell(sum((trial.spill_bytes or 0) > 0 for trial in trials)),
    ]


def _device_time(trials: Sequence[TrialRecord]) -> tuple[float | None, float | None]:
    """Seconds of device time per config that held the device, and the share spent timing."""
    held = [seconds_ for seconds_ in finite_times(trial.device_s for trial in trials) if seconds_]
    timing_s = sum(finite_times(trial.timing_s for trial in trials))
    if not held:
        return None, None
    return sum(held) / len(held), min(timing_s / sum(held), 1.0) if timing_s else None


def _fact(data: RunData, name: str) -> float | None:
    """A number that the driver recorded for the whole run."""
    value = data.run.summary.get(name, data.run.environment.get(name))
    return finite(value) if isinstance(value, int | float) else None


def _tiles(data: RunData, trials: Sequence[TrialRecord]) -> list[tuple[str, str, str]]:
    """(number, its meaning, a note) of each tile."""
    per_config_s, timing_share = _device_time(trials)
    timing_s = _fact(data, "timing_s")
    busy, ready = _fact(data, "device_busy_share"), _fact(data, "busy_share_while_ready")
    tiles = []
    if per_config_s is not None:
        note = f"{percent(timing_share)} of it timing" if timing_share is not None else ""
        tiles.append((f"{plain(1e3 * per_config_s)} ms", "of device time per config", note))
    if busy is not None:
        note = f"{percent(ready)} of it at work" if ready is not None else ""
        tiles.append((percent(busy), "of the devices' time with a job", note))
    if timing_s is not None:
        held_s = _fact(data, "device_s")
        note = f"of {seconds(held_s)} held; " if held_s is not None else ""
        tiles.append((seconds(timing_s), "spent timing", f"{note}finals included"))
    watched = [trial for trial in trials if "throttle" in trial.clocks]
    if watched:
        void, repeated = sum(map(_is_void, trials)), sum(map(_is_repeated, trials))
        note = f"{count(void, 'trial')} throttled again" if void else ""
        tiles.append((f"{repeated:,}", "trials in passes voided by throttling", note))
        capped = sum(map(_is_capped, trials))
        note = "not voided: the limit is a property of the device" if capped else ""
        tiles.append((percent(capped / len(watched)), "of trials at the power limit", note))
    return tiles


# -- samples per trial -----------------------------------------------------------------------------
def depths_frame(tasks: Sequence[TaskData]) -> pd.DataFrame:
    """One row per task and number of samples per trial: task, samples, share of the trials."""
    found = []
    for task in tasks:
        counts = Counter(len(trial.samples_us) for trial in task.screened)
        total = sum(counts.values())
        found += [(task.label, depth, counts[depth] / total) for depth in sorted(counts)]
    return pd.DataFrame(found, columns=["task", "samples", "share"])


def depths(frame: pd.DataFrame) -> go.Figure:
    """Stacked bars, one per task: the shares of its trials by number of samples.

    frame: one row per task and number of samples: task (in the order to show), samples (per
    trial), share.
    """
    kinds = {
        samples: (
            f"{samples} sample" + "s" * (samples != 1),
            _COLOURS[place % len(_COLOURS)],
            _PATTERNS[place % len(_PATTERNS)],
            f"%{{x:.1%}} after {samples}",
        )
        for place, samples in enumerate(sorted(set(frame["samples"])))
    }
    bars = frame.rename(columns={"samples": "kind", "share": "size"})
    axis = {"title": {"text": "share of timed trials"}, "range": [0, 1], "tickformat": "~%"}
    return stack_bars(bars, kinds, axis)


def _depths(tasks: Sequence[TaskData]) -> FigureView:
    shown, note = foremost(tasks, lambda task: len(task.screened))
    every = depths_frame(tasks)
    rows = zip(every["task"], every["samples"].tolist(), every["share"], strict=True)
    table = Table.of(
        ("task", "samples", "share of trials"),
        ((task, samples, percent(share, 1)) for task, samples, share in rows),
    )
    counts = Counter(len(trial.samples_us) for task in tasks for trial in task.screened)
    total, least = sum(counts.values()), min(counts)
    text = (
        f"Each of {count(total, 'trial')} was timed with {count(least, 'sample')}."
        if len(counts) == 1
        else f"{percent(counts[least] / total)} of {count(total, 'trial')} ended after "
        f"{count(least, 'sample')}, {percent(counts[max(counts)] / total)} after the maximum of "
        f"{max(counts)}."
    )
    return figure_view("depths", depths(depths_frame(shown)), text + note, table)


# -- tables ----------------------------------------------------------------------------------------
def _unstable(trials: Iterable[tuple[TaskData, TrialRecord]]) -> Table | None:
    rows = [
        (task.label, pairs(trial.config), micros(finite(trial.median_us)))
        for task, trial in trials
        if trial.deterministic is False
    ]
    return Table.of(("task", "config", "search time, µs"), rows) if rows else None


def _spilling(trials: Iterable[tuple[TaskData, TrialRecord]]) -> Table | None:
    rows = [
        (t.label, pairs(r.config), spilled, r.registers, micros(finite(r.median_us)))
        for t, r in trials
        if (spilled := r.spill_bytes or 0) > 0
    ]
    rows.sort(key=lambda row: -row[2])
    headings = ("task", "config", "spill, bytes", "registers", "search time, µs")
    return Table.of(headings, rows) if rows else None


def _calibrations(data: RunData) -> Table:
    """One row per card and host, as measured when its worker started."""
    rows = []
    for record in data.calibrations:
        measured = record.calibration
        rows.append(
            (
                record.device.name or record.device.target,
                f"…{record.device.uuid[-8:]}" if record.device.uuid else NOTHING,
                record.host or NOTHING,
                f"{record.measured_at:%Y-%m-%d %H:%M:%S %Z}".strip(),
                _format_known(measured.quantum_us, 1.0),
                _format_each(measured.overhead_us, 1.0),
                _format_known(measured.flush_us, 1.0),
                _format_known(measured.copy_bytes_per_us, 1e-3),
                _format_each(measured.flops_per_us, 1e-6),
            )
        )
    return Table.of(_CALIBRATION, rows)


def _format_known(value: float, scale: float) -> str:
    """A number; zero stands for an unknown value."""
    number = finite(value)
    return plain(number * scale) if number else NOTHING


def _format_each(values: Mapping[str, float], scale: float) -> str:
    """Numbers by name. Zero is a valid overhead."""
    known = [
        (name, number) for name in sorted(values) if (number := finite(values[name])) is not None
    ]
    return ", ".join(f"{name} {plain(number * scale)}" for name, number in known) or NOTHING


SECTION = SectionSpec(build, after="failures")
