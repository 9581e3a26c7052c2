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
from reports.subjects.tasks.convergence import ENOUGH, view_convergence
from reports.subjects.tasks.errors import view_errors
from reports.subjects.tasks.finals import view_finals
from reports.subjects.tasks.parameters import view_parameters
from reports.task_data import TaskData
from reports.theme import shorten
from reports.view import FigureView, Section, SectionSpec, Table, view_config
from results_db.config_text import describe_changes
from search_spaces.records import Config, Status

_TOP, _MESSAGE = 10, 300


def build(data: RunData) -> Section | None:
    """One part per task; None for a run without tasks."""
    if not data.tasks:
        return None
    views: list[FigureView] = []
    details = [_detail(task, views) for task in data.tasks]
    return Section("tasks", "Tasks", "tasks.html.j2", {"details": details}, views)


SECTION = SectionSpec(build, after="compiled")


def _detail(task: TaskData, views: list[FigureView]) -> dict[str, Any]:
    """What the template shows of one task; adds its figures to `views`."""
    timed = len(task.timed) > 0 and not task.absent
    enough = len(task.timed) >= ENOUGH
    finals = view_finals(task) if task.info.finals else None
    convergence = view_convergence(task) if timed else []
    parameters = view_parameters(task) if timed and enough else []
    errors = view_errors(task) if timed else None
    drawn = (finals and finals[1], *convergence, *parameters, errors)
    views += [view for view in drawn if view]
    return {
        "task": task,
        "config": view_config(task),
        "finals": finals,
        "time_text": duration(task.median_us) if task.median_us is not None else "",
        "facts": _facts(task),
        "convergence": convergence,
        "parameters": parameters,
        "errors": errors,
        "too_few": timed and not enough,
        "top_title": "Fewest registers" if task.state == "built" else "Fastest trials",
        "top": None if finals else _top(task),
        "baselines": _baselines(task),
        "trials": {"task": f"{task.info.run_id}/{task.info.task_id}", "rows": _list_trials(task)},
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
    default = task.info.selection.default if task.info.selection else None
    if config is None or default is None:
        return pairs(config)
    return ", ".join(describe_changes(config, default)) or "the default config"


def _facts(task: TaskData) -> list[tuple[str, str]]:
    info, selection = task.info, task.info.selection
    facts: list[tuple[str, str]] = [("stage", info.stage if info.stage != "done" else "")]
    if selection is not None:
        ties = "; ".join(_describe_config(task, config) for config in selection.tie_set[:8])
        facts.append(("default config", pairs(selection.default)))
        facts.append(("why the default config stays", task.kept_because))
        if task.kept_because:
            facts.append(("winner of the search", _describe_config(task, selection.winner)))
        facts.append(("runner-up", _describe_config(task, selection.runner_up)))
        if not info.finals:
            facts.append(("equally fast (within 1 %)", f"{len(selection.tie_set)}: {ties}"))
            facts.append(("chosen among them by", selection.reason))
    if finite(info.flops):
        facts.append(("least operations", f"{plain(info.flops / 1e9)} GFLOP"))
    if finite(info.bytes):
        facts.append(("least bytes", size(info.bytes)))
    facts.append(("speed", ", ".join(task.rates)))
    if task.roofline is not None:
        facts.append(("share of the roofline", percent(task.roofline, 1)))
    launches = f"{task.device_compiles} launches" if task.device_compiles else ""
    facts.append(("compiled on the device worker", launches))
    if info.tolerance is not None:
        facts.append(("tolerance", f"{info.tolerance:.2g}"))
    methods = sorted({trial.method for trial in task.timed if trial.method})
    facts.append(("timing method", ", ".join(methods)))
    facts.append(("note", info.note))
    return [(name, text) for name, text in facts if text]


def _top(task: TaskData) -> Table | None:
    """The fastest trials; for a task that was never timed, those with the fewest registers."""
    timed = task.state != "built"
    if timed:
        ranked = sorted(task.timed, key=lambda t: (t.median_us or 0.0, t.number))
    else:
        ranked = sorted(
            task.correct, key=lambda t: (t.spill_bytes or 0, t.registers or 10**9, t.number)
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
    return Table(
        ("config, default → this", *times_of, "registers", "shared memory", "spill, bytes"),
        tuple(rows),
    )


def _baselines(task: TaskData) -> Table | None:
    if not task.info.baselines:
        return None
    rows = []
    for baseline in task.info.baselines:
        correct = baseline.status is Status.CORRECT
        over = task.over(baseline) if correct else None
        rows.append(
            (
                baseline.name,
                baseline.status.value,
                micros(finite(baseline.median_us)),
                times(over),
                span(over),
                baseline.message[:300],
            )
        )
    against = ("speed-up", "95 % interval")
    return Table(("baseline", "status", "time, µs", *against, "message"), tuple(rows))
