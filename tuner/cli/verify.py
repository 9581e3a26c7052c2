"""`tuner verify`: check the results of a kernel's configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from results_db.stored_records import NOT_CHECKED
from search_spaces.errors import TunerError
from search_spaces.records import Status
from tuner.cli.command_context import flag, settings_of, storable
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import (
    QuietOption,
    SettingsOption,
    TargetOption,
    VariantOption,
    WorkloadOption,
    note_origins,
)
from tuner.views.column import Column, sort_config
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from pathlib import Path

    from search_spaces.bound import BoundSpace
    from search_spaces.records import Workload
    from tuner.compare import BenchTarget, CheckedVariant, Variant, VariantSelection
    from tuner.settings.sections import Settings

_COLUMNS: tuple[Column[CheckedVariant], ...] = (
    Column("kernel", lambda each: each.target.kernel.name, heading=None),
    Column("workload", lambda each: each.workload.key, heading=None),
    Column("device", lambda each: each.target.device.name, heading=None),
    Column("target", lambda each: each.target.device.target, heading=None),
    Column("variant", lambda each: each.variant or None),
    Column("status", lambda each: each.state),
    Column("checked_by", lambda each: each.checked_by or None),
    Column("error"),
    Column("config", lambda each: sort_config(each.config)),
    Column("note", lambda each: each.message),
    Column("check_size", lambda each: each.check_size and each.check_size.key, heading=None),
)
_PER_KERNEL = (
    "kernel",
    "workloads",
    "configs",
    "correct",
    "constraints",
    "not_checked",
    "wrong",
    "error",
)
#: Statuses that are no finding for a config that was enumerated or drawn, not named.
_HARMLESS = (Status.CORRECT, Status.CONSTRAINTS)
#: Configs of each kernel where all kernels are checked and no number is given.
_USUAL_SAMPLE = 20


def verify(
    kernel: Annotated[
        str | None,
        typer.Argument(
            help="A name, module:object, file.py:object. Every known kernel with --all alone.",
            metavar="[KERNEL]",
            show_default=False,
        ),
    ] = None,
    config: VariantOption = None,
    every: Annotated[
        bool, flag("--all", help="All configs of the space; without KERNEL, all kernels.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(min=1, callback=storable, help="How many configs, drawn at random."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, callback=storable, help="Seed of the random draw.")
    ] = 0,
    workload: WorkloadOption = None,
    target: TargetOption = None,
    settings_file: SettingsOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check the results of configs, also on the check size; nothing is timed or stored.

    With --all or --sample, also configs of the kernel's other workloads, which a table may use for
    this one though a search would not try them. Where this machine has no such GPU, configs are
    compiled for it and run by Triton's interpreter. A config that the interpreter cannot run is
    listed and is no error. Without --config, --all or --sample, the default config is checked.
    `--all` without KERNEL checks every known kernel, with 20 random configs (or --sample of them)
    over all its workloads. Exits with 1 if a config is wrong.
    """
    from search_spaces import registry
    from tuner.campaign import early_start

    _check_options(kernel, config, every, sample, workload)
    settings, base = settings_of(settings_file)
    names = [kernel] if kernel else _list_kernels(settings, target)
    targets = [target] if target else []
    kinds = [(registry.kinds_by_name(name), targets) for name in names]
    early_start.begin(kinds, stand_ins=True)
    from tuner import compare as library

    drawn = every or sample is not None
    if kernel is None:
        count = sample or _USUAL_SAMPLE
        selections = [_spread(settings, base, name, target, count, seed) for name in names]
    else:
        found = library.bench_target(
            settings, base, kernel, workloads=workload or (), target=target, timed=False
        )
        selections = [_select(settings, found, config, drawn, sample, seed)]
    with show_progress(not quiet) as on_progress:
        checks = library.verify(settings, selections, on_progress=on_progress)
    harmless = _HARMLESS if drawn else (Status.CORRECT,)
    findings = [item for item in checks if item.status not in harmless]
    if kernel is None and style is Format.TABLE:
        emit([_kernel_row(item, checks) for item in selections], _PER_KERNEL, style)
        _emit_checks(findings, ("kernel", "workload"), style)
    else:
        several = ("workload",) if len(selections[0].variants) > 1 else ()
        _emit_checks(checks, several, style)
    for selection in selections:
        _note_checked(selection.target, checks)
    if findings:
        raise typer.Exit(1)


def _check_options(
    kernel: str | None,
    config: Sequence[str] | None,
    every: bool,
    sample: int | None,
    workload: Sequence[str] | None,
) -> None:
    if kernel is None:
        if not every:
            raise TunerError(
                "verify: no kernel is named", "name one, or check every known kernel with --all"
            )
        if config or workload:
            raise TunerError(
                "--config and --workload belong to one kernel, and --all alone means every kernel",
                "name the kernel",
            )
    elif sum((bool(config), every, sample is not None)) > 1:
        raise TunerError("--config, --all and --sample exclude each other", "give one of them")


def _list_kernels(settings: Settings, target: str | None) -> list[str]:
    """The kernels known by name and those of config.yaml, as far as they may run on the target."""
    from search_spaces import registry

    names = [*registry.available(), *settings.kernels]
    return [name for name in names if registry.may_run_on(name, target)]


def _select(
    settings: Settings,
    target: BenchTarget,
    configs: Sequence[str] | None,
    drawn: bool,
    count: int | None,
    seed: int,
) -> VariantSelection:
    """The named configs of one kernel, or those drawn or enumerated."""
    from tuner import compare as library

    spaces: dict[Workload, BoundSpace] = {}
    variants = {
        item: _draw(target, item, count, seed, spaces)
        if drawn
        else library.named_variants(target, item, configs or ["default"], settings.database.url)
        for item in target.workloads
    }
    note_origins(variants.values())
    return library.VariantSelection(target, variants)


def _draw(
    target: BenchTarget,
    workload: Workload,
    count: int | None,
    seed: int,
    spaces: dict[Workload, BoundSpace],
) -> Sequence[Variant]:
    """All configs of a workload or `count` of them, and a quarter as many of other workloads."""
    from tuner import compare as library

    own = library.space_variants(target, workload, count, seed)
    elsewhere = -(-(count or _USUAL_SAMPLE) // 4)
    return [*own, *library.elsewhere_variants(target, workload, elsewhere, seed, spaces)]


def _spread(
    settings: Settings, base: Path, kernel: str, target: str | None, count: int, seed: int
) -> VariantSelection:
    """At least `count` random configs of a kernel, drawn in equal parts for all its workloads."""
    from tuner import compare as library

    found = library.bench_target(settings, base, kernel, workloads=None, target=target, timed=False)
    each = -(-count // len(found.workloads))
    spaces: dict[Workload, BoundSpace] = {}
    drawn = {item: _draw(found, item, each, seed, spaces) for item in found.workloads}
    return library.VariantSelection(found, drawn)


def _kernel_row(selection: VariantSelection, checks: Sequence[CheckedVariant]) -> dict[str, object]:
    """The checks of one kernel, counted."""
    own = [item for item in checks if item.target is selection.target]
    counts = Counter(item.state for item in own)
    correct, constraints, unchecked = (counts[state] for state in (*_HARMLESS, NOT_CHECKED))
    return {
        "kernel": selection.target.kernel.name,
        "workloads": len(selection.variants),
        "configs": len(own),
        "correct": correct,
        "constraints": constraints,
        "not_checked": unchecked,
        "wrong": len(own) - correct - constraints - unchecked,
        "error": max((item.error for item in own if item.error is not None), default=None),
    }


def _emit_checks(checks: Sequence[CheckedVariant], several: Sequence[str], style: Format) -> None:
    if checks or not several:
        columns = (replace(c, heading="" if c.name in several else c.heading) for c in _COLUMNS)
        emit(checks, tuple(columns), style, filled=True)


def _note_checked(target: BenchTarget, checks: Sequence[CheckedVariant]) -> None:
    words = [item.state for item in checks if item.target is target]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(sorted(words)))
    how = ", compiled, and run by Triton's interpreter" if target.runner == "interpreter" else ""
    name = target.device.name
    note(f"{target.kernel.name}: {len(words)} configs for {name}{how}: {counts}")
