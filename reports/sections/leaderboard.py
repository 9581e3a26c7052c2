"""The leaderboard: per task the chosen config, against the fastest baseline and the default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.outcome import VERDICTS, TaskOutcome, outcome
from reports.parts.config_view import ConfigView, view_config
from reports.parts.speedups import speedup_view
from reports.parts.view import Section, script_json
from reports.quantity import duration, finite, percent, span, times
from reports.run_data import RunData, TaskData
from results_db.spreadsheet import inert_cell
from search_spaces.records import canonical_json
from tuner.base.log_ratio import LogRatio, split_ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table."""

    text: str
    #: The value to sort by; empty sorts last.
    sort: str = ""
    #: Smaller lines below the text.
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """One task of the leaderboard."""

    task: TaskData
    result: TaskOutcome
    #: By key of `COLUMNS`.
    cells: dict[str, Cell]
    config: ConfigView | None


#: Heading and explanation of each column of numbers.
COLUMNS = {
    "baseline": (
        "Against fastest baseline",
        "time of the fastest correct baseline ÷ time, with its 95 % interval",
    ),
    "default": (
        "Against default",
        "time of the default config ÷ time, with its 95 % interval",
    ),
    "time": ("Time", "median of the confirmation, with its 95 % interval"),
    "roofline": (
        "Roofline",
        "share of the speed that the device's data sheet allows; and rates",
    ),
}


def build(data: RunData) -> Section | None:
    """The table of all tasks with a present device, and the figure of their speed-ups.

    A range is shown by the parts of it that one config each serves; programs get every size.
    """
    rows = [_row(task) for task in data.listed_tasks if task.state != "built"]
    if not rows:
        return None
    return Section(
        name="leaderboard",
        title="Leaderboard",
        template="leaderboard.html.j2",
        context={
            "rows": rows,
            "columns": COLUMNS,
            "verdicts": [v for v in VERDICTS if any(row.result.standing == v for row in rows)],
            "devices": sorted({row.task.device for row in rows}),
            "figure": speedup_view([(row.task, row.result) for row in rows]),
            "csv": script_json(_csv([task for task in data.tasks if task.state != "built"])),
        },
    )


def _row(task: TaskData) -> LeaderboardRow:
    result = outcome(task)
    best, unconfirmed = result.baseline, result.median_us is not None and not result.confirmed
    return LeaderboardRow(
        task=task,
        result=result,
        cells={
            "time": _cell(
                duration(result.median_us),
                result.median_us,
                "unconfirmed" if unconfirmed else _format_interval(result.interval_us),
            ),
            "default": _ratio_cell(
                result.over_default, _format_named("default", result.default_us)
            ),
            "baseline": _ratio_cell(
                result.over_baseline, _format_named(best.name, best.median_us) if best else ""
            ),
            "roofline": _roofline(result),
        },
        config=view_config(task.info, result.config),
    )


def _format_interval(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return ""
    low, high = (duration(end) for end in ends)
    shared = low.endswith(high.rpartition(" ")[2])
    return f"{low.rpartition(' ')[0] if shared else low} to {high}"


def _format_named(name: str, median_us: float | None) -> str:
    return f"{name} {duration(median_us)}" if finite(median_us) is not None else ""


def _ratio_cell(over: LogRatio | None, opponent: str) -> Cell:
    return _cell(times(over), over.ratio if over else None, span(over), opponent)


def _roofline(result: TaskOutcome) -> Cell:
    digits = 1 if (result.roofline or 1.0) < 0.1 else 0
    return _cell(percent(result.roofline, digits), result.roofline, *result.rates)


def _csv(tasks: list[TaskData]) -> list[list[object]]:
    """Headings, then one record per task. Spreadsheets run no text as a formula."""
    names = list(dict.fromkeys(b.name for task in tasks for b in task.info.baselines))
    table: list[list[object]] = [
        [
            *("kernel", "workload", "device", "target", "verdict", "median_us", "default_us"),
            *("over_default", "over_default_low", "over_default_high", "fastest_baseline"),
            *("over_baseline", "roofline", "tflop_s", "gb_s", "tied", "trials", "failed"),
            *("compiled", "config"),
            *(f"{name}_us" for name in names),
        ]
    ]
    for task in tasks:
        result = outcome(task)
        over, against = result.over_default, result.over_baseline
        times_us = {b.name: finite(b.median_us) for b in task.info.baselines}
        key = task.info.key
        table.append(
            [
                *(task.kernel, task.workload, key.device.name, key.device.target, result.verdict),
                *(result.median_us, result.default_us),
                *split_ratio(over),
                result.baseline.name if result.baseline else None,
                against.ratio if against else None,
                *(result.roofline, result.tflop_s, result.gb_s, result.ties),
                *(len(task.trials), len(task.failed), result.compiled),
                canonical_json(dict(result.config or {})),
                *(times_us.get(name) for name in names),
            ]
        )
    return [[inert_cell(value) for value in record] for record in table]


def _cell(text: str, value: float | None, *lines: str) -> Cell:
    sort = "" if value is None or not math.isfinite(value) else f"{value:.9g}"
    return Cell(text, sort, tuple(line for line in lines if line))
