"""The tasks, each folded: finals, baselines, convergence, parameters, error, trials."""

from __future__ import annotations

from typing import Any

from reports.quantity import (
    clean,
    duration,
    factor,
    finite,
    micros,
    pairs,
    percent,
    plain,
    size,
    span,
    times,
)
from reports.source import RunData
from reports.subjects.tasks.convergence import view_convergence
from reports.subjects.tasks.errors import view_errors
from reports.subjects.tasks.finals import view_finals
from reports.subjects.tasks.parameters import view_parameters
from reports.task_data import TaskData
from reports.theme import shorten
from reports.view import Section, SectionSpec, Table
from results_db.stored_records import SelectionRecord
from search_spaces.records import Config, Status

_TOP, _MESSAGE = 10, 300
#: Fewest timed trials that say what each parameter does.
_ENOUGH = 30


def build(data: RunData) -> Section | None:
    """One part per task; None for a run without tasks."""
    if not data.tasks:
        return None
    details = [_draw(task) for task in data.tasks]
    views = [view for detail in details for view in detail["views"]]
    folded = len(details) > 1
    return Section("tasks", "Tasks", "tasks.html.j2", {"details": details}, views, folded)


def _draw(task: TaskData) -> dict[str, Any]:
    if "tasks" not in task.drawn:
        task.drawn["tasks"] = _detail(task)
    detail: dict[str, Any] = task.drawn["tasks"]
    return detail


def _detail(task: TaskData) -> dict[str, Any]:
    """What the template shows of one task."""
    timed = len(task.timed) > 0 and not task.absent
    enough = len(task.timed) >= _ENOUGH
    finals = view_finals(task) if task.info.finals else None
    convergence = view_convergence(task) if timed else None
    parameters = view_parameters(task) if timed and enough else []
    errors = view_errors(task) if timed else None
    drawn = (finals and finals[1], convergence, *parameters, errors)
    return {
        "task": task,
        "finals": finals,
        "views": [view for view in drawn if view],
        "time_text": duration(task.median_us) if task.median_us is not None else "",
        "facts": _facts(task),
        "convergence": convergence,
        "parameters": parameters,
        "errors": errors,
        "too_few": timed and not enough,
        "top_title": "Fewest registers" if task.state == "built" else "Fastest trials",
        "top": None if finals else _top(task),
        "baselines": _baselines(task),
        "trials": {"task": f"{task.info.run_id}/{task.number}", "rows": _list_trials(task)},
    }


def _list_trials(task: TaskData) -> list[tuple[object, ...]]:
    """Each trial in the order of completion, as `report.js` lists them."""
    times_us = [finite(trial.median_us) for trial in task.trials]
    return [
        (
            trial.number,
            trial.state,
            None if time is None else shorten([time])[0],
            len(trial.samples_us),
            trial.registers,
            config,
            clean(trial.message)[:_MESSAGE],
        )
        for trial, time, config in zip(task.trials, times_us, task.configs, strict=True)
    ]


def _describe_config(task: TaskData, config: Config | None) -> str:
    """What differs from the default config; all of it where there is no default."""
    changes = None if config is None else task.describe(config)
    return pairs(config) if changes is None else ", ".join(changes) or "the default config"


def _facts(task: TaskData) -> list[tuple[str, str]]:
    info, selection = task.info, task.info.selection
    launches = f"{task.device_compiles} launches" if task.device_compiles else ""
    methods = sorted({trial.method for trial in task.timed if trial.method})
    facts = [
        ("stage", info.stage if info.stage != "done" else ""),
        *(_list_choices(task, selection) if selection else ()),
        ("least operations", f"{plain(info.flops / 1e9)} GFLOP" if finite(info.flops) else ""),
        ("least bytes", size(info.bytes) if finite(info.bytes) else ""),
        ("speed", ", ".join(task.rates)),
        ("share of the roofline", "" if task.roofline is None else percent(task.roofline, 1)),
        ("compiled on the device worker", launches),
        ("tolerance", "" if info.tolerance is None else f"{info.tolerance:.2g}"),
        ("timing method", ", ".join(methods)),
        ("note", info.note),
    ]
    return [(name, text) for name, text in facts if text]


def _list_choices(task: TaskData, selection: SelectionRecord) -> list[tuple[str, str]]:
    """What the confirmation chose among."""
    winner = _describe_config(task, selection.winner) if task.kept_because else ""
    facts = [
        ("default config", pairs(selection.default)),
        ("why the default config stays", task.kept_because),
        ("winner of the search", winner),
        ("runner-up", _describe_config(task, selection.runner_up)),
    ]
    if not task.info.finals:
        ties = "; ".join(_describe_config(task, config) for config in selection.tie_set[:8])
        facts.append(("equally fast (within 1 %)", f"{len(selection.tie_set)}: {ties}"))
        facts.append(("chosen among them by", selection.reason))
    return facts


def _top(task: TaskData) -> Table | None:
    """The fastest trials; for a task that was never timed, those with the fewest registers."""
    timed = task.state != "built"
    ranked = sorted(
        task.timed if timed else task.correct,
        key=lambda t: (
            (t.median_us or 0.0, t.number)
            if timed
            else (t.spill_bytes or 0, t.registers or 10**9, t.number)
        ),
    )
    if not ranked:
        return None
    best = ranked[0].median_us if timed else None
    rows = [
        (
            _describe_config(task, trial.config),
            *((micros(trial.median_us), factor((trial.median_us or 0) / best)) if best else ()),
            trial.registers,
            None if trial.shared_bytes is None else size(trial.shared_bytes),
            trial.spill_bytes,
        )
        for trial in ranked[:_TOP]
    ]
    times_of = ("search time, µs", "÷ fastest") if best else ()
    headings = ("config, default → this", *times_of, "registers", "shared memory", "spill, bytes")
    return Table.of(headings, rows)


def _baselines(task: TaskData) -> Table | None:
    if not task.info.baselines:
        return None
    rows = []
    for each in task.info.baselines:
        over = task.over(each) if each.status is Status.CORRECT else None
        time = micros(finite(each.median_us))
        rows.append(
            (each.name, each.status.value, time, times(over), span(over), each.message[:_MESSAGE])
        )
    headings = ("baseline", "status", "time, µs", "speed-up", "95 % interval", "message")
    return Table.of(headings, rows)


SECTION = SectionSpec(build, after="compiled")
