"""The finalists of a task with their places: winner, tied, slower, dropped or failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.quantity import pairs
from reports.run_data import TaskData
from results_db.stored_records import FinalRecord, SelectionRecord
from search_spaces.records import Config, Status, canonical_json, config_key
from tuner.base.log_ratio import LogRatio, pick_ratio

#: Each place with its meaning, in the order of the legend.
PLACES = {
    "winner": "chosen",
    "tied": "cannot be distinguished from the fastest",
    "slower": "slower than the fastest",
    "dropped": "dropped early in the race",
    "failed": "has no time",
}


@dataclass(frozen=True, slots=True)
class Finalist:
    """One finalist in one stage."""

    record: FinalRecord
    #: A key of `PLACES`.
    place: str
    #: The parameters in which the finalists differ.
    label: str
    #: ln(time / reference's time); None where unknown.
    log_ratio: LogRatio | None


def finalists(task: TaskData, stage: str) -> list[Finalist]:
    """The finalists of a stage, `race` or `confirm`: fastest first, those without a time last."""
    records = [record for record in task.info.finals if record.stage == stage]
    differing = _differing([record.config for record in records])
    found = []
    for record in records:
        ratio = pick_ratio(record.log_ratio) if record.status is Status.CORRECT else None
        shown = {name: record.config[name] for name in differing if name in record.config}
        found.append(
            Finalist(
                record=record,
                place=_place(record, task.info.selection) if ratio else "failed",
                label=pairs(shown or record.config) or "the only config",
                log_ratio=ratio,
            )
        )
    return sorted(found, key=lambda f: f.log_ratio.value if f.log_ratio else math.inf)


def _place(record: FinalRecord, selection: SelectionRecord | None) -> str:
    key = config_key(record.config)
    if selection is not None and key == config_key(selection.winner):
        return "winner"
    if selection is not None and key in {config_key(config) for config in selection.tie_set}:
        return "tied"
    return "dropped" if record.dropped else "slower"


def _differing(configs: Sequence[Config]) -> list[str]:
    """The parameters that differ between configs."""
    names = sorted({name for config in configs for name in config})
    values = {
        name: {canonical_json(config[name]) if name in config else "" for config in configs}
        for name in names
    }
    return [name for name in names if len(values[name]) > 1]
