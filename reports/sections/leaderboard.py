"""The leaderboard: per task the config that ships, against the default and every baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.outcome import VERDICTS, TaskOutcome, outcome
from reports.parts.speedups import speedup_view
from reports.parts.view import Section, script_json
from reports.quantity import NOTHING, finite, micros, pairs, percent, plain, span, times
from reports.run_data import RunData, TaskData
from results_db.spreadsheet import inert_cell
from search_spaces.log_ratio import LogRatio, split_ratio
from search_spaces.records import Status, canonical_json


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
    #: By key of `MEASURES` and `COUNTS`.
    cells: dict[str, Cell]
    config_text: str
    #: The text of the copy button.
    config_json: str
    #: (name, time and ratio) of each baseline.
    baselines: list[tuple[str, str]]


#: Heading and explanation of each column; MEASURES are left of the config, COUNTS right of it.
MEASURES = {
    "time": ("Time, µs", "median of the confirmation, with its 95 % interval"),
    "default": ("Over default", "speed-up over the default config, with its 95 % interval"),
    "baseline": (
        "Over fastest baseline",
        "speed-up over the fastest correct baseline",
    ),
    "roofline": (
        "Roofline",
        "roofline bound ÷ time, by the device's data sheet; else rates",
    ),
}
COUNTS = {
    "ties": (
        "Tied",
        "configs that cannot be distinguished from this one, itself included",
    ),
    "trials": ("Trials", "number of trials, and of failed ones"),
    "compiled": (
        "Compiled on device",
        "launches that compiled on the device worker; expected: 0",
    ),
}


def build(data: RunData) -> Section | None:
    """The table of all tasks with a present device, and the figure of their speed-ups."""
    rows = [_row(task) for task in data.tasks if task.state != "built"]
    if not rows:
        return None
    return Section(
        name="leaderboard",
        title="Leaderboard",
        template="leaderboard.html.j2",
        context={
            "rows": rows,
            "measures": MEASURES,
            "counts": COUNTS,
            "verdicts": [v for v in VERDICTS if any(row.result.verdict == v for row in rows)],
            "devices": sorted({row.task.device for row in rows}),
            "figure": speedup_view([(row.task, row.result) for row in rows]),
            "csv": script_json(_csv(rows)),
        },
    )


def _row(task: TaskData) -> LeaderboardRow:
    result = outcome(task)
    failed = len(task.failed)
    return LeaderboardRow(
        task=task,
        result=result,
        cells={
            "time": _cell(micros(result.median_us), result.median_us, _interval(result)),
            "default": _ratio_cell(
                result.over_default, _format_named("default", result.default_us)
            ),
            "baseline": _ratio_cell(
                result.over_baseline,
                _format_named(result.baseline.name, result.baseline.median_us)
                if result.baseline
                else "",
            ),
            "roofline": _roofline(result),
            "ties": _cell(f"{result.ties}" if result.ties else NOTHING, result.ties or None),
            "trials": _cell(
                f"{len(task.trials):,}", len(task.trials), f"{failed:,} failed" if failed else ""
            ),
            "compiled": _cell(f"{result.compiled}", result.compiled),
        },
        config_text=pairs(result.config),
        config_json=canonical_json(dict(result.config or {})),
        baselines=_baselines(task, result),
    )


def _interval(result: TaskOutcome) -> str:
    if not result.confirmed:
        return "unconfirmed" if result.median_us is not None else ""
    if result.interval_us is None:
        return ""
    return " to ".join(micros(bound) for bound in result.interval_us)


def _format_named(name: str, median_us: float | None) -> str:
    return f"{name} {micros(median_us)} µs" if finite(median_us) is not None else ""


def _ratio_cell(over: LogRatio | None, opponent: str) -> Cell:
    return _cell(times(over), over.ratio if over else None, span(over), opponent)


def _roofline(result: TaskOutcome) -> Cell:
    rates = [
        f"{plain(rate)} {unit}"
        for rate, unit in ((result.tflop_s, "TFLOP/s"), (result.gb_s, "GB/s"))
        if rate is not None
    ]
    digits = 1 if (result.roofline or 1.0) < 0.1 else 0
    return _cell(percent(result.roofline, digits), result.roofline, *rates)


def _baselines(task: TaskData, result: TaskOutcome) -> list[tuple[str, str]]:
    """(name, time and ratio; or why there is no time) of each baseline."""
    listed = []
    for baseline in task.info.baselines:
        if baseline.status is not Status.CORRECT or finite(baseline.median_us) is None:
            why = "not timed" if baseline.status is Status.CORRECT else baseline.status.value
            listed.append((baseline.name, why))
            continue
        over = result.over(baseline)
        text = f"{micros(baseline.median_us)} µs"
        listed.append((baseline.name, f"{text} ({times(over)})" if over else text))
    return listed


def _csv(rows: list[LeaderboardRow]) -> list[list[object]]:
    """Headings, then one record per task. Spreadsheets run no text as a formula."""
    names = list(dict.fromkeys(b.name for row in rows for b in row.task.info.baselines))
    table: list[list[object]] = [
        [
            *("kernel", "workload", "device", "target", "verdict", "median_us", "default_us"),
            *("over_default", "over_default_low", "over_default_high", "fastest_baseline"),
            *("over_baseline", "roofline", "tflop_s", "gb_s", "tied", "trials", "failed"),
            *("compiled", "config"),
            *(f"{name}_us" for name in names),
        ]
    ]
    for row in rows:
        task, result = row.task, row.result
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
                *(len(task.trials), len(task.failed), result.compiled, row.config_json),
                *(times_us.get(name) for name in names),
            ]
        )
    return [[inert_cell(value) for value in record] for record in table]


def _cell(text: str, value: float | None, *lines: str) -> Cell:
    sort = "" if value is None or not math.isfinite(value) else f"{value:.9g}"
    return Cell(text, sort, tuple(line for line in lines if line))
