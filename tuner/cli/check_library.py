"""`tuner check --library`: the tables that a kernel library ships, for a device and a model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import typer

from search_spaces.errors import TunerError
from tuner.cli.command_context import configured_kernels, settings_of
from tuner.cli.console import Format, emit, note
from tuner.cli.stop_signals import interruptible
from tuner.views.column import Column
from tuner.views.progress_display import show_progress

if TYPE_CHECKING:
    from tuner.integrations import Adapter, ExaminedLaunch
    from tuner.library_doctor.expectations import Expectation
    from tuner.library_doctor.states import Examined
    from tuner.settings.sections import Settings

R = TypeVar("R")
#: A table of a library, and what stored results say of it.
_Table: TypeAlias = "tuple[Examined, Expectation]"
#: Numbers of tokens that a table for readers lists.
_SHOWN = 4
_FINDINGS = ("missing", "other triton", "malformed")


def _list_tokens(item: ExaminedLaunch, most: int | None = None) -> str | None:
    more = ", ..." if most is not None and len(item.tokens) > most else ""
    return ", ".join(map(str, item.tokens[:most])) + more or None


_LAUNCHES: tuple[Column[ExaminedLaunch], ...] = (
    Column("layer", lambda each: each.layer or None),
    Column("kernel"),
    Column("problem", lambda e: e.key and " ".join(f"{k}={v}" for k, v in e.key.items())),
    Column("state", lambda each: f"{each.state}"),
    Column("path", lambda each: each.path and f"{each.path}", heading=None),
    Column("entries"),
    Column("tokens", _list_tokens, lambda each: _list_tokens(each, _SHOWN)),
    Column("triton", lambda each: each.triton or None),
    Column("note", lambda each: each.note or None),
)


def _describe_gain(each: _Table) -> str:
    """Unknown for a table without stored results."""
    gain = each[1].gain
    return "unknown" if gain is None else f"{gain:.2f}x of {each[1].sizes} sizes"


def _describe_minutes(each: _Table) -> str | None:
    """Without a model there are no tasks to count."""
    if each[0].shape is None:
        return None
    return "unknown" if each[1].minutes is None else f"{each[1].minutes:.1f}"


def _join_notes(each: _Table) -> str:
    slower = ", ".join(map(str, each[1].slower))
    return "; ".join(
        filter(None, [each[0].note, f"slower than the default at {slower}" if slower else ""])
    )


_TABLES: tuple[Column[_Table], ...] = (
    Column("adapter", lambda each: each[0].adapter.name, heading=None),
    Column("layer", lambda each: each[0].shape and each[0].shape.layer),
    Column("problem", lambda each: f"{each[0].key}"),
    Column("state", lambda each: f"{each[0].state}"),
    Column("path", lambda each: each[0].path and f"{each[0].path}", heading=None),
    Column("rows", lambda each: each[0].table and len(each[0].table.rows)),
    Column("triton", lambda each: each[0].triton or None),
    Column("gain", lambda each: each[1].gain, _describe_gain),
    Column("gain_sizes", lambda each: each[1].sizes, heading=None),
    Column("slower_sizes", lambda each: list(each[1].slower), heading=None),
    Column("gpu_minutes", lambda each: each[1].minutes, _describe_minutes),
    Column("note", _join_notes),
)


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """The options of `tuner check` that belong to `--library`."""

    library: str
    model: Path | None
    tensor_parallel: int
    expert_parallel: int
    device: str | None
    tables: Path | None
    triton: str | None
    sizes: str | None
    retune: bool
    output: Path | None
    trials: int | None


def examine_library(options: LibraryOptions, config: Path | None, style: Format) -> None:
    """List the tables, and with `--retune` tune the missing ones; exits with 1 on a finding."""
    from tuner.integrations import USUAL_SIZES, adapters, kernel_libraries

    settings, base = settings_of(config)
    _check(options)
    if options.library in kernel_libraries():
        _examine_launches(options, settings, base, style)
        return
    adapters(options.library)  # which refuses an unknown one
    device = options.device or _device_here()
    sizes = USUAL_SIZES if options.sizes is None else _sizes(options.sizes)
    # A folder that is named is inspected alone, whatever this process would read.
    environment = dict(os.environ) if options.tables is None else {}
    found = _examine(options, device, environment)
    if options.retune:
        fixed = _fix(options, settings, base, found, device, sizes)
        found = _examine(options, device, {**environment, **fixed})
    from tuner.library_doctor.expectations import Expectations

    known = Expectations(settings.database.url, device)
    tables = [(item, known.of(item, sizes)) for item in found]
    _emit(options.library, device, tables, _TABLES, style)
    if _note_states(device, found):
        raise typer.Exit(1)


def _note_states(device: str, found: Sequence[Examined | ExaminedLaunch]) -> bool:
    """Note how many there are of each state; whether one of them is a finding."""
    counts = Counter(f"{item.state}" for item in found)
    note(f"{device}: {', '.join(f'{count} {word}' for word, count in counts.items()) or 'none'}")
    return any(counts[word] for word in _FINDINGS)


def _examine_launches(
    options: LibraryOptions, settings: Settings, base: Path, style: Format
) -> None:
    """The launches of a library without tables of its own, by its adapter."""
    from tuner.integrations import DoctorQuestion, kernel_library

    library = kernel_library(options.library)
    device = options.device or _device_here()
    question = DoctorQuestion(
        device,
        _triton_here() if options.triton is None else options.triton,
        (options.tables,) if options.tables else _own_tables(settings, base),
        options.model,
        options.tensor_parallel,
        None if options.sizes is None else _sizes(options.sizes),
    )
    if options.retune:
        raise TunerError(
            f"--retune writes tables that a library loads, and {options.library} loads none",
            " && ".join(library.remedies(question)),
        )
    found = library.examine(question)
    _emit(options.library, device, found, _LAUNCHES, style)
    if _note_states(device, found):
        lines = library.remedies(question)
        if len(lines) > 1:
            head = "on a machine with the device and the library:"
            commands = (f"  {command}" for command in lines)
            lines = [head, *commands, "then launch from these tables with `tuner apply`"]
        for line in lines:
            note(line)
        raise typer.Exit(1)


def _own_tables(settings: Settings, base: Path) -> tuple[Path, ...]:
    """Our tables: those that TUNER_APPLY names, then the folder of the configuration."""
    listed = os.environ.get("TUNER_APPLY", "").split(os.pathsep)
    folder = base / settings.paths.tables
    return (*(Path(name) for name in listed if name), *([folder] if folder.is_dir() else []))


def _check(options: LibraryOptions) -> None:
    if options.retune and options.model is None:
        raise TunerError("--retune needs --model", "name the config.json of the model to tune for")
    if options.output is not None and not options.retune:
        raise TunerError("--output belongs to --retune", "give both, or neither")


def _examine(options: LibraryOptions, device: str, environment: dict[str, str]) -> list[Examined]:
    from tuner.integrations import load_model
    from tuner.library_doctor.states import examine_files, examine_shapes, library_in

    triton = _triton_here() if options.triton is None else options.triton
    library = library_in(options.library, options.tables, triton, environment)
    if options.model is not None:
        model = load_model(options.model)
        parallel = options.tensor_parallel, options.expert_parallel
        return examine_shapes(library, model, device, *parallel)
    found, elsewhere, lacking = examine_files(library, device)
    note(f"{elsewhere} tables for other devices; {lacking} problems have tables for those only")
    return found


def _fix(
    options: LibraryOptions,
    settings: Settings,
    base: Path,
    found: Sequence[Examined],
    device: str,
    sizes: Sequence[int],
) -> dict[str, str]:
    """Tune what is missing; returns the variables with which the library finds the files."""
    from tuner.campaign import Control
    from tuner.integrations import TableState
    from tuner.library_doctor.fix import fix

    missing = [item for item in found if item.state in (TableState.MISSING, TableState.MALFORMED)]
    if not missing:
        note("no table is missing or malformed")
        return {}
    own = configured_kernels(settings, base)
    folder = options.output or _folder(options, settings, missing)
    control = Control()
    with interruptible(control), show_progress(True) as show:
        fixed = fix(
            settings, base, missing, device, sizes, folder,
            kernels=own, trials=options.trials, control=control, on_progress=show,
        )  # fmt: skip
    note(fixed.run.summary)
    for path in fixed.paths:
        note(f"wrote {path}")
    named = {item.adapter.environment: f"{folder.resolve()}" for item in missing}
    for variable, value in named.items():
        if variable:
            note(f"set {variable}={value} where {options.library} runs")
        else:
            note(f"copy the files below {folder / 'package'} into the package: it reads no others")
    for variable in sorted({_replacing(item.adapter) for item in missing} - {""}):
        note(f"{variable} replaces the package's tables: copy those into that folder, too")
    return {variable: value for variable, value in named.items() if variable}


def _replacing(adapter: Adapter) -> str:
    """The variable with which an adapter's library no longer reads its package; else empty."""
    package = Path("package")
    folders = adapter.folders(package, "0", {adapter.environment: "/own"})
    alone = adapter.environment and not any(path.is_relative_to(package) for path in folders)
    return adapter.environment if alone else ""


def _folder(options: LibraryOptions, settings: Settings, missing: Sequence[Examined]) -> Path:
    """The folder of the user's that the library reads, else one below that of our tables."""
    variables = [item.adapter.environment for item in missing if item.adapter.environment]
    for variable in variables:
        if named := os.environ.get(variable):
            return Path(named)
    return Path(settings.paths.tables) / options.library


def _emit(
    library: str, device: str, found: Sequence[R], columns: Sequence[Column[R]], style: Format
) -> None:
    """What was found, for programs with the library and the device."""
    same: tuple[Column[R], ...] = (
        Column("library", lambda _: library, heading=None),
        Column("device", lambda _: device, heading=None),
    )
    emit(found, (*same, *columns), style, filled=True)


def _sizes(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise TunerError(f"--sizes {text!r} is no list of sizes", "write them as 1,16,64")
    return tuple(sorted({int(word) for word in words}))


def _device_here() -> str:
    """The name of the first accelerator of this machine."""
    from workers import backend_kinds

    for backend in backend_kinds.specs():
        if backend.accelerator and (here := backend.find_devices()):
            return here[0].name
    raise TunerError(
        "there is no GPU here whose tables could be listed", "name one with --device 'NVIDIA H200'"
    )


def _triton_here() -> str:
    from workers.toolchain import triton_toolchain

    return triton_toolchain().triton
