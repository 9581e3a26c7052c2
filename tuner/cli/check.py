"""`tuner check`: tables against the present code, toolchain and device, at three levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces.errors import TunerError
from tuner.base.inert_text import inert
from tuner.cli.check_entries import check_entries
from tuner.cli.check_library import LibraryOptions, examine_library
from tuner.cli.command_context import (
    ConfigOption,
    KernelsOption,
    complete_runs,
    configured_kernels,
    flag,
    settings_of,
    store_of,
)
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.variant_options import QuietOption
from tuner.runtime import DeviceFacts, Table, TableError, is_for_device, read, staleness
from tuner.views.runs import pick_run
from workers import backend_kinds

if TYPE_CHECKING:
    from tuner.settings.sections import Settings

#: Trials of a search with budget `auto` that ends early, about.
_TRIALS = 60
_COLUMNS = ("kernel", "made on", "here", "entries", "gain there", "minutes to tune", "note")
_USED = ("used", "used as the nearest sibling's")


class CheckLevel(StrEnum):
    """How much of a table is checked; each level includes those before it."""

    READ = "read"
    BUILD = "build"
    MEASURE = "measure"


def check(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Tables, and folders of tables; by default the folder of the configuration. With "
            "--library: its package, an unpacked wheel, or a folder of its tables.",
            metavar="[TABLES]...",
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        CheckLevel,
        typer.Option(
            help="read: files, code, toolchain, device. build: also build the configs. measure: "
            "also time them where a binary, the driver or the card has changed."
        ),
    ] = CheckLevel.READ,
    retune: Annotated[
        bool,
        flag("--retune", help="Tune what is missing or lost its winner, and write the tables."),
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000_000,
            help="Trials of each task of --retune; by default until little is to be gained.",
            show_default=False,
        ),
    ] = None,
    runners_up: Annotated[
        int, typer.Option(min=0, max=1000, help="Configs to measure beside winner and default.")
    ] = 3,
    any_device: Annotated[
        bool, flag("--any-device", help="Also measure tables of other cards, on the card here.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="The device's name, as 'NVIDIA H200'; by default the GPU here."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Compare the files with the results of a run: a number, latest, or a tag.",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option("--export-format", help="The format of the files, with --run.")
    ] = "tuner",
    library: Annotated[
        str | None,
        typer.Option(
            help="Check the tables of a library: fla, flag_gems, liger, sglang, vllm.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A model's config.json: only the tables that it needs.", metavar="FILE"),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, max=4096, help="Tensor-parallel size.")] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, max=4096, help="Expert-parallel size.")] = 1,
    triton: Annotated[
        str | None,
        typer.Option(help="The Triton that the library runs with; by default the one here."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="The rows to tune, as 1,16,64; by default those of the libraries."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder for a library's tables.")
    ] = None,
    kernel: KernelsOption = None,
    config: ConfigOption = None,
    quiet: QuietOption = False,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check tables; exits with 1 on a finding.

    A finding is a malformed table, changed code or search space, another Triton, a file that
    differs from the results of --run, or, with --device, a table that launches there do not use;
    at the levels build and measure a winner that flipped, is slower, wrong, or no longer builds.
    With --library: the tables that a kernel library has for a device, and those that a model lacks.
    """
    paths = list(tables or ())
    if trials is not None and not retune:
        raise TunerError("--trials belongs to --retune", "give both, or neither")
    if library is not None:
        folder = paths[0] if paths else None
        examine_library(
            LibraryOptions(
                library, model, tp, ep, device, folder, triton, sizes, retune, output, trials
            ),
            config,
            style,
        )
        return
    if tp != 1 or ep != 1 or any(each is not None for each in (model, triton, sizes, output)):
        raise TunerError("these options belong to --library", "name a library, as vllm")
    settings, base = settings_of(config)
    paths = paths or [Path(settings.paths.tables)]
    if retune or level is not CheckLevel.READ:
        if retune and level is CheckLevel.BUILD:
            raise TunerError("--retune measures", "leave --level out, or give --level measure")
        check_entries(
            settings, base, paths, config, kernel or (), retune=retune, trials=trials,
            runners_up=runners_up, any_device=any_device,
            build_only=level is CheckLevel.BUILD, quiet=quiet, style=style,
        )  # fmt: skip
    elif run is not None:
        _compare_with_run(settings, base, run, paths[0], kind)
    else:
        _read_tables(settings, base, paths, device, kernel or (), style)


def _read_tables(
    settings: Settings,
    base: Path,
    paths: Sequence[Path],
    device: str | None,
    specs: Sequence[str],
    style: Format,
) -> None:
    """One row per table; exits with 1 where one has a fault."""
    from tuner.tables import check as find_faults
    from tuner.tables import list_coverage_lines
    from tuner.tables.table_check import list_tables

    files = list_tables(paths)
    here = DeviceFacts(device) if device else _find_accelerator()
    own = configured_kernels(settings, base, specs)
    kernels = {name: found[-1] for name, found in own.items()}
    faults = {path: find_faults([path], kernels) for path in files}
    rows = [_row(path, here, faults[path]) for path in files]
    emit(rows, _COLUMNS, style)
    for line in list_coverage_lines(files):
        note(inert(line))
    lost = [row for row in rows if row["here"] not in _USED] if device else []
    if lost:
        note(
            f"{len(lost)} of {len(rows)} tables are not used there: tune their kernels, or measure "
            "whether their configs still win with `tuner check --any-device --retune`"
        )
    if lost or any(faults.values()):
        raise typer.Exit(1)
    note(f"{', '.join(map(str, paths))}: up to date")


def _compare_with_run(settings: Settings, base: Path, run: str, folder: Path, kind: str) -> None:
    """What an export of the run would change, one line each."""
    from tuner import tables
    from tuner.cli.export import own_kernels

    with store_of(settings) as store:
        info = pick_run(store, None if run == "latest" else run)
        kernels = own_kernels(settings, base, store, store.tasks(info.run_id))
        findings = tables.check_export(store, info.run_id, folder, kind, kernels)
    for finding in findings:
        print(inert(finding))
    if findings:
        raise typer.Exit(1)
    note(f"{folder}: up to date")


def _find_accelerator() -> DeviceFacts | None:
    """The first accelerator of this machine."""
    from tuner.tables.results import device_facts

    specs = [spec for spec in map(backend_kinds.spec, backend_kinds.names()) if spec.accelerator]
    found = (device for spec in specs if spec.timed for device in spec.find_devices())
    return next(map(device_facts, found), None)


def _row(path: Path, here: DeviceFacts | None, faults: Sequence[str]) -> Mapping[str, object]:
    notes = [each.removeprefix(f"{path}: ") for each in faults]
    try:
        table = read(path)
    except TableError:
        return {"kernel": path.name, "here": "malformed", "note": "; ".join(notes)}
    state, why = _judge(table, here)
    notes += [why] if why and why not in notes else []
    spec = backend_kinds.spec_of_stored(table.device.kind)
    seconds = len(table.entries) * (_TRIALS * spec.seconds_per_trial + spec.seconds_of_finals)
    return {
        "kernel": table.kernel,
        "made on": table.device.name,
        "here": state,
        "entries": len(table.entries),
        "gain there": _gain([entry.speedup_over_default for entry in table.entries]),
        "minutes to tune": round(seconds / 60, 1),
        "note": "; ".join(notes) or None,
    }


def _judge(table: Table, here: DeviceFacts | None) -> tuple[str, str]:
    """Whether launches on this device use the table, and what else is to be said."""
    reason = staleness(table)
    if is_for_device(table, here):
        return ("stale", reason) if reason else ("used", "")
    if here is None:
        return "no device here", ""
    if math.isinf(here.distance_to_sibling(table.device)):
        return "another device", "no config is known to run here"
    if reason:
        return "stale", reason
    return (
        "used as the nearest sibling's",
        "with TUNER_DEVICE=nearest; its times are those of the other card",
    )


def _gain(speedups: Sequence[float | None]) -> float | None:
    """The geometric mean of default time over table time, on the card of the table."""
    known = [math.log(each) for each in speedups if each]
    return round(math.exp(sum(known) / len(known)), 3) if known else None
