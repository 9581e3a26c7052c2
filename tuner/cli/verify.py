"""`tuner verify`: whether configs of one kernel compute what they should."""

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
    tell_origins,
    told,
    told_columns,
)

if TYPE_CHECKING:
    from tuner.bench import Checked

_COLUMNS = ("variant", "status", "checked_by", "error", "config", "note")
_EVERYTHING = ("kernel", "workload", "device", "target", *_COLUMNS, "odd")
#: Statuses that say nothing against a config that was not asked for by name.
_HARMLESS = (Status.CORRECT, Status.CONSTRAINTS)


def verify(
    kernel: KernelArgument,
    config: VariantOption = None,
    every: Annotated[bool, typer.Option("--all", help="Every config of the space.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="So many configs, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of the draw.")] = 0,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    settings_file: SettingsOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check that configs compute what they should, odd size included; nothing is timed or stored.

    Where no such GPU is here they are compiled for it and run by Triton's interpreter; what that
    cannot run is told and no error. Exits with 1 if any is wrong. The default config by itself,
    unless others are named.
    """
    from tuner import bench as library

    if sum((bool(config), every, sample is not None)) > 1:
        raise TunerError("--config, --all and --sample exclude each other", "give one of them")
    settings, base = settings_of(settings_file)
    subject = library.subject(
        settings, base, kernel, workloads=workload or (), target=target, timed=False
    )
    url, drawn = settings.database.url, every or sample is not None
    chosen = {
        item: library.points(subject, item, sample, seed)
        if drawn
        else library.variants(subject, item, config or ["default"], url)
        for item in subject.workloads
    }
    tell_origins(chosen.values())
    with told(quiet=quiet) as tell:
        found = list(library.verify(settings, subject, chosen, tell=tell))
    rows = [
        {
            "kernel": subject.kernel.name,
            "device": subject.device.name,
            "target": subject.device.target,
            **_checked_row(item, style),
        }
        for item in found
    ]
    several = ("workload",) if len(chosen) > 1 else ()
    columns = (*several, *told_columns(_COLUMNS, rows)) if style is Format.TABLE else _EVERYTHING
    emit(rows, columns, style)
    _note_checked(found, subject.device.name, subject.runner)
    harmless = _HARMLESS if drawn else (Status.CORRECT,)
    if any(item.status not in harmless for item in found):
        raise typer.Exit(1)


def _checked_row(item: Checked, style: Format) -> dict[str, object]:
    return {
        "workload": item.workload.key,
        "variant": item.variant or None,
        "status": f"{item.status}",
        "checked_by": item.checked_by or None,
        "odd": item.odd.key if item.odd else None,
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
