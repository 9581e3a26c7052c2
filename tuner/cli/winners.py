"""Rows of confirmed winners, for `tuner run`, `tuner best` and `tuner status`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results_db.shipped import Shipped, describe_ratio, fastest_baseline, select_shipped
from tuner.base.log_ratio import LogRatio, join_ratio, split_ratio
from tuner.cli.column_units import format_us
from tuner.cli.console import READABLE, VERDICT_COLOURS, Format, cell, emit
from tuner.cli.text_table import filled_columns
from tuner.cli.variant_options import config_cell

if TYPE_CHECKING:
    from results_db.stored_records import BaselineRecord, TaskInfo

#: Columns for readers: times and ratios are texts with interval and name.
_SHOWN = ("kernel", "workload", "device", "time", "vs_default", "vs_baseline", "config")
#: Columns for programs: one number or text each.
_FIELDS = (
    "kernel",
    "workload",
    "device",
    "target",
    "run",
    "config",
    "ships",
    "median_us",
    "low_us",
    "high_us",
    "verdict",
    "default_us",
    "speedup",
    "speedup_low",
    "speedup_high",
    "baseline",
    "over_baseline",
    "over_baseline_low",
    "over_baseline_high",
    "baseline_verdict",
    "confirmed_at",
    "note",
)


def winner_row(task: TaskInfo) -> dict[str, object] | None:
    """What ships for a task, with its confirmed time and ratios; None where nothing is confirmed.

    A ratio above 1 means that the config that ships is faster. Intervals are 95 % each.
    """
    from tuner.base.statistics import median_interval

    chosen = task.selection
    if chosen is None or chosen.median_us is None:
        return None
    ships = select_shipped(chosen)
    low_us, high_us = median_interval(ships.samples_us(chosen, task.finals)) or (None, None)
    return {
        "kernel": task.key.kernel,
        "workload": task.key.workload.key,
        "device": task.key.device.name,
        "target": task.key.device.target,
        "run": task.run_id,
        "config": dict(ships.config),
        "ships": "default" if ships.default_kept else "winner",
        "median_us": ships.median_us,
        "low_us": low_us,
        "high_us": high_us,
        "verdict": chosen.verdict,
        "default_us": chosen.default_us,
        **make_ratios(ships, task.baselines),
        "confirmed_at": chosen.confirmed_at,
        "note": "; ".join(filter(None, [task.note, ships.kept_because])),
    }


def list_winners(
    tasks: Sequence[TaskInfo],
    *,
    parts: bool,
    more: Callable[[TaskInfo], Mapping[str, object]] = lambda _: {},
) -> list[dict[str, object]]:
    """Rows of winners.

    parts: show the tasks of a range as its parts, each by one size and the sizes that its config
    serves. more: further columns of a task.
    """
    from results_db.range_outcomes import RangePart, list_shown

    rows: list[dict[str, object]] = []
    for shown in list_shown(tasks) if parts else tasks:
        task = shown.task if isinstance(shown, RangePart) else shown
        row = winner_row(task)
        if row is not None:
            if isinstance(shown, RangePart) and task.place:
                row["workload"] = task.place.describe_part(task.key.workload, shown.low, shown.high)
            rows.append({**row, **more(task)})
    return rows


def make_ratios(ships: Shipped, baselines: Iterable[BaselineRecord]) -> dict[str, object]:
    """The times of the default config and of the fastest baseline over that of what ships."""
    fastest = fastest_baseline(baselines)
    over = ships.over(fastest) if fastest else None
    return {
        **make_ratio("speedup", ships.log_ratio),
        "baseline": fastest.name if fastest else None,
        **make_ratio("over_baseline", over),
        "baseline_verdict": (-over).verdict() if over else None,
    }


def describe_winner(row: Mapping[str, Any], style: Format) -> dict[str, object]:
    """A winner's row with the columns of that format, and with whether the default ships."""
    readable = style in READABLE
    names, shown = (_SHOWN, _format_row(row)) if readable else (_FIELDS, row)
    return {**{name: shown[name] for name in names}, "ships": row["ships"]}


def emit_winners(
    rows: Sequence[Mapping[str, Any]], style: Format, *, more: Sequence[str] = ()
) -> None:
    """List winners; `more` are columns that the caller has added to the rows."""
    if style in READABLE:
        shown = [_format_row(row) for row in rows]
        filled = list(filled_columns(more, shown))
        details = ("config", *filled)
        emit(shown, (*_SHOWN, *filled), style, details=details, shared=("device",), styles=STYLES)
    else:
        plain = [{**row, "config": config_cell(row["config"], style)} for row in rows]
        emit(plain, (*_FIELDS, *more), style)


def format_winner(row: Mapping[str, Any]) -> dict[str, str | None]:
    """The config that ships and its comparisons with default and fastest baseline, as texts."""
    config = None if row["config"] is None else cell(row["config"])
    ratio, kept = describe_ratio(read_ratio(row, "speedup")), row["ships"] == "default"
    return {
        "config": f"{config} (the default)" if kept else config,
        "vs_default": f"{ratio} {row['verdict']}" if ratio and not kept else ratio,
        "vs_baseline": describe_ratio(read_ratio(row, "over_baseline"), row.get("baseline")),
    }


def read_ratio(row: Mapping[str, Any], name: str) -> LogRatio | None:
    """The ratio in a row's columns `name`, `name_low` and `name_high`; None where unknown."""
    return join_ratio(*(row.get(f"{name}{part}") for part in ("", "_low", "_high")))


def choose_style(row: Mapping[str, Any]) -> str:
    """The colour of a verdict: by the fastest baseline, and where there is none by the default."""
    name = "speedup" if row.get("over_baseline") is None else "over_baseline"
    over = read_ratio(row, name)
    return VERDICT_COLOURS.get((-over).verdict(), "") if over else ""


#: The styles of columns of winners, by column: one of them has the colour.
STYLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "vs_baseline": choose_style,
    "vs_default": lambda row: choose_style(row) if row.get("over_baseline") is None else "",
}


def _format_row(row: Mapping[str, Any]) -> dict[str, object]:
    return {
        **row,
        "time": format_us(row["median_us"], row["low_us"], row["high_us"]),
        # That a result is current needs no word.
        "state": None if row.get("state") == "current" else row.get("state"),
        **format_winner(row),
    }


def make_ratio(name: str, over: LogRatio | None) -> dict[str, object]:
    """A row's columns `name`, `name_low` and `name_high`."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), split_ratio(over), strict=True))
