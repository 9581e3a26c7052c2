"""`tuner verify`: check the results of a kernel's configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from search_spaces.records import Status
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.context import LARGEST, settings_of
from tuner.cli.variant_options import (
    KernelArgument,
    QuietOption,
    SettingsOption,
    TargetOption,
    VariantOption,
    WorkloadOption,
    config_cell,
    filled_columns,
    note_origins,
    step_progress,
)

if TYPE_CHECKING:
    from tuner.bench import Checked

_COLUMNS = ("variant", "status", "checked_by", "error", "config", "note")
_EVERYTHING = ("kernel", "workload", "device", "target", *_COLUMNS, "check_size")
#: Statuses that are no finding for a config that was enumerated or drawn, not named.
_HARMLESS = (Status.CORRECT, Status.CONSTRAINTS)


def verify(
    kernel: KernelArgument,
    config: VariantOption = None,
    every: Annotated[bool, typer.Option("--all", help="All configs of the space.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Number of configs, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of the random draw.")] = 0,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    settings_file: SettingsOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check the results of configs, also on the check size; nothing is timed or stored.

    Where this machine has no such GPU, configs are compiled for it and run by Triton's interpreter.
    A config that the interpreter cannot run is listed and is no error. Without --config, --all or
    --sample, the default config is checked. Exits with 1 if a config is wrong.
    """
    from tuner.campaign import early_start

    early_start.begin([(early_start.kinds_of(kernel), [target] if target else [])], stand_ins=True)
    from tuner import bench as library

    if sum((bool(config), every, sample is not None)) > 1:
        raise TunerError("--config, --all and --sample exclude each other", "give one of them")
    settings, base = settings_of(settings_file)
    bench_target = library.bench_target(
        settings, base, kernel, workloads=workload or (), target=target, timed=False
    )
    url, drawn = settings.database.url, every or sample is not None
    chosen = {
        item: library.space_variants(bench_target, item, sample, seed)
        if drawn
        else library.named_variants(bench_target, item, config or ["default"], url)
        for item in bench_target.workloads
    }
    note_origins(chosen.values())
    with step_progress(quiet=quiet) as on_progress:
        checks = list(library.verify(settings, bench_target, chosen, on_progress=on_progress))
    rows = [
        {
            "kernel": bench_target.kernel.name,
            "device": bench_target.device.name,
            "target": bench_target.device.target,
            **_checked_row(item, style),
        }
        for item in checks
    ]
    several = ("workload",) if len(chosen) > 1 else ()
    columns = (*several, *filled_columns(_COLUMNS, rows)) if style is Format.TABLE else _EVERYTHING
    emit(rows, columns, style)
    _note_checked(checks, bench_target.device.name, bench_target.runner)
    harmless = _HARMLESS if drawn else (Status.CORRECT,)
    if any(item.status not in harmless for item in checks):
        raise typer.Exit(1)


def _checked_row(item: Checked, style: Format) -> dict[str, object]:
    return {
        "workload": item.workload.key,
        "variant": item.variant or None,
        "status": f"{item.status}",
        "checked_by": item.checked_by or None,
        "check_size": item.check_size.key if item.check_size else None,
        "error": item.error,
        "config": config_cell(item.config, style),
        "note": item.message,
    }


def _note_checked(found: Sequence[Checked], device: str, runner: str) -> None:
    words = [
        f"{item.status}" if item.checked_by or item.status is not Status.CORRECT else "not checked"
        for item in found
    ]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(sorted(words)))
    how = ", compiled, and run by Triton's interpreter" if runner == "interpreter" else ""
    note(f"{len(found)} configs for {device}{how}: {counts}")
