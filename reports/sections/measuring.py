"""The section "How it was measured": methods, device time, samples, calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reports import figures
from reports.frames import depths_frame
from reports.outcome import TaskOutcome, outcome
from reports.parts.calibration import calibration_table
from reports.parts.view import FigureView, Section, Table, figure_view, foremost
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
from reports.run_data import RunData, TaskData
from results_db.stored_records import Source, TrialRecord
from tuner.base.statistics import finite_times


@dataclass(frozen=True, slots=True)
class MeasuringRow:
    """The measurements of one task. Counts are numbers of trials."""

    task: TaskData
    result: TaskOutcome
    methods: str
    caches: str
    timed: int
    #: Device time per config that held the device; None where unknown.
    per_config_s: float | None
    #: Share of the device time spent timing; None where unknown.
    timing_share: float | None
    #: A pass was voided by throttling and repeated.
    repeated: int
    #: The repeated pass was throttled too.
    void: int
    #: The device was at its power limit.
    capped: int
    #: A repetition gave different bits.
    unstable: int
    #: A repetition was compared.
    checked: int
    #: The binary spills registers.
    spilling: int

    @property
    def per_config_ms(self) -> str:
        return plain(None if self.per_config_s is None else 1e3 * self.per_config_s)

    @property
    def timing(self) -> str:
        return percent(self.timing_share)


def build(data: RunData) -> Section | None:
    """The section; None for a run without measurements and calibrations."""
    tasks = [task for task in data.tasks if _select_measured(task)]
    table = calibration_table(data)
    if not tasks and table is None:
        return None
    return Section(
        name="measuring",
        title="How it was measured",
        template="measuring.html.j2",
        context={
            "tiles": _tiles(data, tasks),
            "rows": [_row(task) for task in tasks],
            "depths": _depths(tasks),
            "calibrations": table,
            "unstable": _unstable(tasks),
            "spilling": _spilling(tasks),
        },
    )


def _select_measured(task: TaskData) -> list[TrialRecord]:
    """Trials that held the device in this run."""
    if task.absent:
        return []
    return [trial for trial in task.trials if trial.source == Source.MEASURED and trial.method]


def _row(task: TaskData) -> MeasuringRow:
    trials = _select_measured(task)
    per_config_s, timing_share = _device_time(trials)
    return MeasuringRow(
        task=task,
        result=outcome(task),
        methods=join_words(sorted({trial.method for trial in trials})),
        caches=join_words(sorted({trial.cache for trial in trials if trial.cache})) or NOTHING,
        timed=len(task.screened),
        per_config_s=per_config_s,
        timing_share=timing_share,
        repeated=sum(bool(trial.clocks.get("repeated")) for trial in trials),
        void=sum(bool(trial.clocks.get("throttled")) for trial in trials),
        capped=sum(map(_capped, trials)),
        unstable=sum(trial.deterministic is False for trial in trials),
        checked=sum(trial.deterministic is not None for trial in trials),
        spilling=sum((trial.spill_bytes or 0) > 0 for trial in trials),
    )


def _capped(trial: TrialRecord) -> bool:
    return "power_cap" in f"{trial.clocks.get('throttle', '')}".replace(" ", "_")


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


def _tiles(data: RunData, tasks: Sequence[TaskData]) -> list[tuple[str, str, str]]:
    """(number, its meaning, a note) of each tile."""
    trials = [trial for task in tasks for trial in _select_measured(task)]
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
        void = sum(bool(t.clocks.get("throttled")) for t in trials)
        repeated = sum(bool(t.clocks.get("repeated")) for t in trials)
        note = f"{count(void, 'trial')} throttled again" if void else ""
        tiles.append((f"{repeated:,}", "trials in passes voided by throttling", note))
        capped = sum(map(_capped, trials))
        note = "not voided: the limit is a property of the device" if capped else ""
        tiles.append((percent(capped / len(watched)), "of trials at the power limit", note))
    return tiles


def _depths(tasks: Sequence[TaskData]) -> FigureView | None:
    screened = [task for task in tasks if task.screened]
    if not screened:
        return None
    shown, note = foremost(screened, lambda task: len(task.screened))
    every = depths_frame(screened)
    table = Table.of(
        ("task", "samples", "share of trials"),
        (
            (f"{row['task']}", int(row["samples"]), percent(row["share"], 1))
            for _, row in every.iterrows()
        ),
    )
    counts = Counter(len(trial.samples_us) for task in screened for trial in task.screened)
    total, least = sum(counts.values()), min(counts)
    text = (
        f"Each of {count(total, 'trial')} was timed with {count(least, 'sample')}."
        if len(counts) == 1
        else f"{percent(counts[least] / total)} of {count(total, 'trial')} ended after "
        f"{count(least, 'sample')}, {percent(counts[max(counts)] / total)} after the maximum of "
        f"{max(counts)}."
    )
    figure = figures.depths(depths_frame(shown))
    return figure_view("depths", figure, text + note, table)


def _unstable(tasks: Sequence[TaskData]) -> Table | None:
    rows = [
        (task.label, pairs(trial.config), micros(finite(trial.median_us)))
        for task in tasks
        for trial in _select_measured(task)
        if trial.deterministic is False
    ]
    return Table.of(("task", "config", "search time, µs"), rows) if rows else None


def _spilling(tasks: Sequence[TaskData]) -> Table | None:
    found = [
        (task, trial)
        for task in tasks
        for trial in _select_measured(task)
        if trial.spill_bytes and trial.spill_bytes > 0
    ]
    found.sort(key=lambda pair: -(pair[1].spill_bytes or 0))
    rows = [
        (t.label, pairs(r.config), r.spill_bytes, r.registers, micros(finite(r.median_us)))
        for t, r in found
    ]
    headings = ("task", "config", "spill, bytes", "registers", "search time, µs")
    return Table.of(headings, rows) if rows else None
