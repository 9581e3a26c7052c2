"""`tuner doctor --library` for libraries whose kernels are tuned by captured calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from search_spaces.errors import TunerError
from tuner.cli.console import Format, emit, note
from tuner.cli.variant_options import filled_columns

if TYPE_CHECKING:
    from tuner.integrations import KernelLibrary
    from tuner.library_doctor import ExaminedLaunch
    from tuner.settings.sections import Settings

_COLUMNS = ("layer", "kernel", "problem", "state", "entries", "tokens", "triton", "note")
_PLACES = ("library", "layer", "kernel", "problem", "device", "state", "path")
_EVERYTHING = (*_PLACES, "entries", "tokens", "triton", "note")
_FINDINGS = ("missing", "other triton", "malformed")
_SHOWN = 4


def examine_kernel_library(
    name: str,
    settings: Settings,
    base: Path,
    model: Path | None,
    tensor_parallel: int,
    device: str,
    tables: Path | None,
    triton: str,
    sizes: Sequence[int] | None,
    style: Format,
    *,
    fix: bool,
) -> None:
    """List the launches of a model, or all entries; exits with 1 on a finding."""
    from tuner.integrations import kernel_library, load_model
    from tuner.library_doctor import entries_of, examine_entries, examine_launches
    from tuner.library_doctor.library_folders import find_installed

    library = kernel_library(name)
    if fix:
        raise TunerError(
            f"--fix writes tables that a library loads, and {name} loads none",
            library.remedy or " && ".join(_commands(library, model, tensor_parallel, sizes)),
        )
    given = [tables] if tables else _tables(settings, base)
    entries = entries_of(library, given, find_installed(library.module), device, dict(os.environ))
    if model is None:
        found = examine_entries(entries, triton)
    else:
        found = examine_launches(
            library, load_model(model), tensor_parallel, entries, triton, sizes
        )
    rows = [_row(name, device, item, style) for item in found]
    if style in (Format.TABLE, Format.MD):
        emit(rows, tuple(filled_columns(_COLUMNS, rows)), style, stack=True)
    else:
        emit(rows, _EVERYTHING, style)
    counts = Counter(f"{item.state}" for item in found)
    note(f"{device}: {', '.join(f'{count} {word}' for word, count in counts.items()) or 'none'}")
    if any(counts[word] for word in _FINDINGS):
        _advise(library, model, tensor_parallel, sizes)
        raise typer.Exit(1)


def _tables(settings: Settings, base: Path) -> list[Path]:
    """Our tables: those that TUNER_APPLY names, then the folder of the configuration."""
    listed = os.environ.get("TUNER_APPLY", "").split(os.pathsep)
    folder = base / settings.paths.tables
    return [*(Path(name) for name in listed if name), *([folder] if folder.is_dir() else [])]


def _commands(
    library: KernelLibrary,
    model: Path | None,
    tensor_parallel: int,
    sizes: Sequence[int] | None,
) -> tuple[str, ...]:
    tokens = " ".join(map(str, sizes or (4096,)))
    return (
        "tuner capture -o calls.json -- python -m tuner.integrations.library_launches "
        f"{library.name} --model {model or 'config.json'} --tp {tensor_parallel} --tokens {tokens}",
        f"tuner run --calls calls.json{' --widen' if library.plain else ''}",
    )


def _advise(
    library: KernelLibrary,
    model: Path | None,
    tensor_parallel: int,
    sizes: Sequence[int] | None,
) -> None:
    if library.remedy:
        note(library.remedy)
        return
    note("on a machine with the device and the library:")
    for command in _commands(library, model, tensor_parallel, sizes):
        note(f"  {command}")
    note("then launch from these tables with `tuner apply`")


def _row(library: str, device: str, item: ExaminedLaunch, style: Format) -> dict[str, object]:
    problem = None if item.key is None else " ".join(f"{k}={v}" for k, v in item.key.items())
    few = style in (Format.TABLE, Format.MD) and len(item.tokens) > _SHOWN
    tokens = ", ".join(map(str, item.tokens[:_SHOWN] if few else item.tokens))
    return {
        "library": library,
        "layer": item.layer or None,
        "kernel": item.kernel,
        "problem": problem,
        "device": device,
        "state": f"{item.state}",
        "path": None if item.path is None else f"{item.path}",
        "entries": item.entries,
        "tokens": f"{tokens}, ..." if few else tokens or None,
        "triton": item.triton or None,
        "note": item.note or None,
    }
