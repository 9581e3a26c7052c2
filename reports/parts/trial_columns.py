"""The trials of a task as compact columns, for its figures and for the table of all trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from reports.figures.theme import LABEL, shorten
from reports.parts.view import TrialColumns
from reports.quantity import clean, finite, plot_text
from reports.run_data import TaskData
from results_db.stored_records import Source
from search_spaces.records import Config

_MESSAGE = 300


def view_trials(task: TaskData) -> TrialColumns:
    """The columns, in the order of completion.

    `report.js` makes the arrays of figures from them, those of timed trials only.
    """
    trials, times = task.trials, [finite(trial.median_us) for trial in task.trials]
    held = (0.0 if t.source == Source.REUSED else finite(t.device_s) or 0.0 for t in trials)
    spent = [round(total, 3) for total in accumulate(held)]
    columns = {
        "task": f"{task.info.run_id}/{task.info.task_id}",
        "number": [trial.number for trial in trials],
        "time": [None if time is None else shorten([time])[0] for time in times],
        "spent": spent,
        "status": _encode([trial.state for trial in trials]),
        "samples": _encode([len(trial.samples_us) for trial in trials]),
        "registers": _encode([trial.registers for trial in trials]),
        "message": _encode([clean(trial.message)[:_MESSAGE] for trial in trials]),
        "config": [
            (clean(name), _encode([_write(trial.config, name) for trial in trials]))
            for name in sorted({name for trial in trials for name in trial.config})
        ],
    }
    timed = [(place, time) for place, time in enumerate(times) if time is not None]
    fastest = min((time for _, time in timed), default=1.0) or 1.0
    arrays: dict[str, list[Any]] = {
        "place": [place + 1 for place, _ in timed],
        "time": shorten(time for _, time in timed),
        "spent": [spent[place] for place, _ in timed],
        "slowdown": shorten(time / fastest for _, time in timed),
        "number": [trials[place].number for place, _ in timed],
        "config": [plot_text(task.configs[place], LABEL) for place, _ in timed],
    }
    names = {tuple(array): name for name, array in reversed(arrays.items()) if array}
    return TrialColumns(columns, names)


def _write(config: Config, name: str) -> str | None:
    return clean(f"{config[name]}") if name in config else None


def _encode(values: Sequence[object]) -> list[Any] | dict[str, list[Any]]:
    """The values themselves, or where few differ, these and the place of each among them."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    if 2 * len(places) > len(values):
        return list(values)
    return {"values": list(places), "of": [places[value] for value in values]}
