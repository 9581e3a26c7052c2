"""The finalists of a task as the report tells them: who won, who ties, who left early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.quantity import pairs
from reports.run_data import TaskData
from results_db.records import FinalRecord, SelectionRecord
from search_spaces.records import Config, Status, canonical_json, config_key

#: place -> what it means, in the order of a legend.
PLACES = {
    "winner": "chosen",
    "tied": "cannot be told from the fastest",
    "slower": "slower than the fastest",
    "dropped": "left the race early",
    "failed": "has no time",
}


@dataclass(frozen=True, slots=True)
class Finalist:
    """One finalist of one stage. label: the parameters in which the finalists differ.

    ln, low, high: ln(time / reference's time) with its interval, None where unknown.
    """

    record: FinalRecord
    place: str
    label: str
    ln: float | None
    low: float | None
    high: float | None


def finalists(task: TaskData, stage: str) -> list[Finalist]:
    """Those of a stage, `race` or `confirm`, fastest first, those without a time last."""
    records = [record for record in task.info.finals if record.stage == stage]
    telling = _telling([record.config for record in records])
    found = []
    for record in records:
        ln = _log(record.log_ratio) if record.status is Status.CORRECT else None
        shown = {name: record.config[name] for name in telling if name in record.config}
        found.append(
            Finalist(
                record=record,
                place=_place(record, ln, task.info.selection),
                label=pairs(shown or record.config) or "the only config",
                ln=ln,
                low=_log(record.log_ratio_low),
                high=_log(record.log_ratio_high),
            )
        )
    return sorted(found, key=lambda f: (f.ln is None, f.ln or 0.0))


def _place(record: FinalRecord, ln: float | None, selection: SelectionRecord | None) -> str:
    if ln is None:
        return "failed"
    key = config_key(record.config)
    if selection is not None and key == config_key(selection.winner):
        return "winner"
    if selection is not None and key in {config_key(config) for config in selection.tie_set}:
        return "tied"
    return "dropped" if record.dropped else "slower"


def _telling(configs: Sequence[Config]) -> list[str]:
    """Parameters that are not the same in all configs."""
    names = sorted({name for config in configs for name in config})
    values = {
        name: {canonical_json(config[name]) if name in config else "" for config in configs}
        for name in names
    }
    return [name for name in names if len(values[name]) > 1]


def _log(value: float | None) -> float | None:
    """A logarithm of a ratio that can be drawn."""
    return value if value is not None and math.isfinite(value) and abs(value) < 50 else None
