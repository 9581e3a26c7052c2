"""`tuner show`: what is stored of a run, of one of its tasks or of one of its trials."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.config_text import describe_changes, format_triton_config
from search_spaces.errors import TunerError
from search_spaces.records import config_key
from tuner.base.inert_text import inert
from tuner.base.log_ratio import pick_ratio, split_ratio
from tuner.cli.command_context import (
    ConfigOption,
    complete_runs,
    configured_kernels,
    flag,
    list_run_kernels,
    settings_of,
    store_of,
)
from tuner.cli.console import READABLE, Format, FormatOption, emit_record, note
from tuner.views.column import Column, Listing, columns_of
from tuner.views.outcomes import CHECKED, WINNERS, Winner, find_winner, list_tasks
from tuner.views.runs import pick_run

if TYPE_CHECKING:
    from pathlib import Path

    from results_db import Store
    from results_db.stored_records import (
        BaselineRecord,
        FinalRecord,
        RunInfo,
        TaskInfo,
        TrialRecord,
    )
    from search_spaces.records import Config
    from tuner.settings.sections import Settings

_REFERENCE = re.compile(r"([^/]+)(?:/(\d{1,18})(?:/(\d{1,18}))?)?")
_RUN = ("tag", "campaign", "status", "started_at", "finished_at", "seed", "environment", "summary")
#: What a reader calls facts of a run's summary.
_SAID = {"device_s": "device_busy_s", "elapsed_s": "took_s", "timing_s": "device_timing_s"}
_BASELINES: tuple[Column[BaselineRecord], ...] = (
    *columns_of("name", "status", "median_us", "error"),
    Column("message"),
)
_FINALS: tuple[Column[FinalRecord], ...] = (
    *columns_of("stage", "status", "median_us", "dropped"),
    Column("config"),
    Column("message"),
)
#: Fields of a trial that have another form in its description, and those that only programs read.
_CHANGED = ("number", "config", "detail", "log_ratio")
_SAMPLES = ("samples_us", "incumbent_samples_us")


def show(
    reference: Annotated[
        str | None,
        typer.Argument(
            help="A run (3 or its tag), one of its tasks (3/2), a trial of that task (3/2/17); "
            "the latest run by default.",
            metavar="RUN|RUN/TASK|RUN/TASK/TRIAL",
            autocompletion=complete_runs,
        ),
    ] = None,
    asm: Annotated[
        bool,
        flag("--asm", help="Build the trial's config again and print its PTX and SASS instead."),
    ] = False,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Show what is stored of a run, of one of its tasks or of one of its trials.

    A run lists the references of its tasks, and `tuner trials` those of its trials. A config is
    shown in full: as JSON, and as `triton.Config` and decorator where Triton launches the kernel.
    """
    run, task, number = _read_reference(reference) if reference is not None else (None,) * 3
    if asm and number is None:
        raise TunerError("--asm needs a trial", "write its reference, as in 3/2/17")
    settings, base = settings_of(config)
    with store_of(settings) as store:
        info = pick_run(store, run)
        if asm and task is not None and number is not None:
            _print_assembly(settings, base, store, _find_task(store, info, task), number)
            return
        if task is None:
            facts = _describe_run(store, info, style)
        elif number is None:
            facts = _describe_task(store, _find_task(store, info, task), style)
        else:
            facts = _describe_trial(store, _find_task(store, info, task), number, style)
    emit_record(facts, style)


def _read_reference(text: str) -> tuple[str, int | None, int | None]:
    """Run, task and trial of a reference."""
    parts = _REFERENCE.fullmatch(text)
    if parts is None:
        raise TunerError(
            f"{text!r} is no run, task or trial",
            "write 3 for a run, 3/2 for its second task, 3/2/17 for trial 17 of that task",
        )
    run, *numbers = parts.groups()
    task_id, number = (None if part is None else int(part) for part in numbers)
    return run, task_id, number


def _describe_run(store: Store, info: RunInfo, style: Format) -> dict[str, object]:
    facts = {name: getattr(info, name) for name in _RUN}
    if style in READABLE:
        facts["environment"] = {k: value for k, value in info.environment.items() if value != ""}
        facts |= {"summary": "", **{_SAID.get(k, k): v for k, v in info.summary.items()}}
        entries = info.summary.get("entries")
        if isinstance(entries, list):
            facts |= {"entries": Listing(CHECKED, entries)}
    return {"run": info.run_id, **facts, "tasks": list_tasks(store, info.run_id, referred=True)}


def _find_task(store: Store, info: RunInfo, number: int) -> TaskInfo:
    for task_id, found in store.number_tasks(info.run_id).items():
        if found == number:
            return store.task(task_id)
    raise TunerError(
        f"run {info.run_id} has no task {number}", f"`tuner show {info.run_id}` lists its tasks"
    )


def _refer(store: Store, task: TaskInfo) -> str:
    return f"{task.run_id}/{store.number_tasks(task.run_id)[task.task_id]}"


def _name_task(store: Store, task: TaskInfo) -> dict[str, object]:
    return {
        "task": _refer(store, task),
        "kernel": task.key.kernel,
        "workload": task.key.workload.key,
        "device": task.key.device.name,
    }


def _describe_task(store: Store, task: TaskInfo, style: Format) -> dict[str, object]:
    (counts,) = store.overview(task.run_id, task.task_id)
    winner = find_winner(task)
    return {
        **_name_task(store, task),
        "stage": task.stage,
        "note": task.note,
        "trials": counts.trials,
        "failed": counts.trials - counts.correct,
        "best_us": counts.best_us,
        **(_describe_winner(winner, style) if winner else {}),
        **(_write_config(task, winner.ships.config) if winner and winner.ships else {}),
        "choice": task.selection.reason if task.selection else "",
        "toolchain": {k: text for k, text in asdict(task.key.toolchain).items() if text},
        "baselines": Listing(_BASELINES, task.baselines),
        "finals": Listing(_FINALS, task.finals),
    }


def _describe_winner(winner: Winner, style: Format) -> dict[str, object]:
    """The columns of the winner in that format, and whether the default ships."""
    found = Listing(WINNERS, [winner])
    (facts,) = found.readable_rows() if style in READABLE else found.rows()
    return {**facts, "ships": found.rows()[0]["ships"]}


def _find_trial(store: Store, task: TaskInfo, number: int) -> TrialRecord:
    trial = next(iter(store.trials(task.task_id, number)), None)
    if trial is None:
        raise TunerError(
            f"task {_refer(store, task)} has no trial {number}",
            "trials are numbered from 0 in the order in which they were proposed",
        )
    return trial


def _print_assembly(
    settings: Settings, base: Path, store: Store, task: TaskInfo, number: int
) -> None:
    from tuner.compare import build_assembly

    trial = _find_trial(store, task, number)
    kernels = configured_kernels(settings, base, list_run_kernels(store, base))
    code, texts = build_assembly(settings, base, task, trial.config, kernels)
    for name, text in texts.items():
        print(inert(f"// {name}"))
        print("\n".join(inert(line.expandtabs(4)) for line in text.splitlines()))
    if trial.binary_hash and trial.binary_hash != code:
        note("this is not the machine code of the trial: another toolchain has built it")


def _describe_trial(store: Store, task: TaskInfo, number: int, style: Format) -> dict[str, object]:
    trial = _find_trial(store, task, number)
    key = config_key(trial.config)
    ratio = split_ratio(pick_ratio(trial.log_ratio))
    left_out = (*_CHANGED, *_SAMPLES) if style in READABLE else _CHANGED
    return {
        **_name_task(store, task),
        "trial": trial.number,
        **_write_config(task, trial.config),
        **{name: value for name, value in asdict(trial).items() if name not in left_out},
        **dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)),
        "finals": Listing(_FINALS, [e for e in task.finals if config_key(e.config) == key]),
        "detail": trial.detail,
    }


def _write_config(task: TaskInfo, config: Config) -> dict[str, object]:
    """The config, what differs from the default, and the forms in which it can be pasted.

    The key of the decorator is the workload's sizes and flags, which are the key arguments of an
    adopted or captured kernel; Triton itself adds the dtypes of tensors.
    """
    default = task.selection.default if task.selection else None
    triton = format_triton_config(config) if task.key.toolchain.triton else None
    keys = [name for name, value in task.key.workload.dims if isinstance(value, int)]
    return {
        "config": dict(config),
        "unlike_default": ", ".join(describe_changes(config, default)) if default else None,
        "json": config_key(config),
        "triton": triton,
        "decorator": triton and f"@triton.autotune(configs=[{triton}], key={json.dumps(keys)})",
    }
