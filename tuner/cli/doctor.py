"""`tuner doctor`: check that this machine has what campaigns need, and name the remedies."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from search_spaces import triton_versions
from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, flag, settings_of
from tuner.cli.console import Format, FormatOption, emit, note
from tuner.cli.doctor_library import LibraryOptions, examine_library
from tuner.cli.doctor_tables import examine_tables

if TYPE_CHECKING:
    from tuner.settings.sections import Settings

_PACKAGES = ("torch", "triton", "ray", "optuna", "sqlalchemy", "alembic", "plotly", "pandas")
_COLUMNS = ("check", "state", "found", "remedy")
_LOW_DISK_GIB = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    #: `ok`, `warn` (a feature is unavailable) or `fail` (campaigns will fail).
    state: str
    found: str
    remedy: str = ""


def doctor(
    library: Annotated[
        str | None,
        typer.Option(
            help="Check the tables of a library instead: fla, flag_gems, liger, sglang, vllm.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A model's config.json: only the tables that it needs.", metavar="FILE"),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, max=4096, help="Tensor-parallel size.")] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, max=4096, help="Expert-parallel size.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(help="The device's name, as 'NVIDIA H200'; by default the GPU here."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --library: its package, an unpacked wheel, or a folder of its tables; by "
            "default the installed package. Alone: a folder of tables to judge for this device.",
        ),
    ] = None,
    triton: Annotated[
        str | None,
        typer.Option(help="The Triton that the library runs with; by default the one here."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="The rows to tune, as 1,16,64; by default those of the libraries."),
    ] = None,
    fix: Annotated[
        bool,
        flag("--fix", help="Tune the missing tables and write the folder it reads."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder that --fix writes to.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000_000, help="Trials of each task of --fix."),
    ] = None,
    config: ConfigOption = None,
    style: FormatOption = Format.TABLE,
) -> None:
    """Check this machine; exits with 1 if campaigns would fail on it.

    With --library: list the tables that a kernel library has for a device, and those that a model
    lacks; exits with 1 if one is missing, malformed or of another Triton. With --tables alone: what
    tables are worth on this device, and what it costs to tune here.
    """
    others = (model, triton, sizes, output, trials)
    if library is not None:
        options = LibraryOptions(
            library, model, tp, ep, device, tables, triton, sizes, fix, output, trials
        )
        examine_library(options, config, style)
        return
    if fix or tp != 1 or ep != 1 or any(value is not None for value in others):
        raise TunerError("these options belong to --library", "name a library, as vllm")
    if tables is not None:
        examine_tables(tables, device, style)
        return
    if device is not None:
        raise TunerError(
            "--device belongs to --library or --tables", "name a library, or a folder of tables"
        )
    findings = list(examine(config))
    rows = [
        {
            "check": item.check,
            "state": item.state,
            "found": item.found,
            "remedy": item.remedy or None,
        }
        for item in findings
    ]
    emit(rows, _COLUMNS, style)
    states = [item.state for item in findings]
    note(
        f"{states.count('ok')} ok, {states.count('warn')} warnings, {states.count('fail')} failures"
    )
    if "fail" in states:
        raise typer.Exit(1)


def examine(config: Path | None) -> Iterator[Finding]:
    """All findings in order; a check that raises is a finding as well."""
    yield from _guard("python", _python)
    yield from _guard("packages", _packages)
    yield from _guard("compiler", _compiler)
    yield from _guard("triton tools", _triton_tools)
    yield from _guard("devices", _devices)
    yield from _guard("cache", _cache)
    try:
        settings, base = settings_of(config)
    except TunerError as error:
        yield Finding("config", "fail", error.message, error.hint)
        return
    yield from _guard("config", lambda: _examine_campaigns(settings, base))
    yield from _guard("database", lambda: _database(settings))
    yield from _guard("calibration", lambda: _calibration(settings))
    yield from _guard("ray", lambda: _ray(settings))
    yield from _guard("disk", lambda: _disk(settings))


def _guard(check: str, examine_part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from examine_part()
    except TunerError as error:
        yield Finding(check, "fail", error.message, error.hint)
    except Exception as error:
        yield Finding(check, "fail", f"{type(error).__name__}: {error}", "see the message")


def _python() -> Iterator[Finding]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", found)
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        yield Finding(
            "python headers", "warn", f"no {header}",
            "install them (Debian: python3-dev); Triton and Inductor compile against them",
        )  # fmt: skip


def _packages() -> Iterator[Finding]:
    if remark := triton_versions.remark():
        yield Finding("triton", "warn", remark, "see docs/installation.md for the versions")
    for name in _PACKAGES:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "fail", "not installed", f"pip install {name}")


def _compiler() -> Iterator[Finding]:
    for label, variable, names in (
        ("C compiler", "CC", ("gcc", "cc", "clang")),
        ("C++ compiler", "CXX", ("g++", "clang++")),
    ):
        named = os.environ.get(variable)
        found = next(filter(None, map(shutil.which, (named,) if named else names)), None)
        if found:
            yield Finding(label, "ok", found)
        else:
            yield Finding(
                label, "fail", f"{named or ', '.join(names)}: not found",
                "install one (Debian: g++); it compiles Triton's launcher and CPU variants",
            )  # fmt: skip


def _triton_tools() -> Iterator[Finding]:
    found = find_spec("triton")
    if found is None or not found.origin:
        return
    folder = Path(found.origin).parent / "backends" / "nvidia" / "bin"
    for tool in ("ptxas", "cuobjdump"):
        path = folder / tool
        if path.exists() or shutil.which(tool):
            yield Finding(tool, "ok", str(path if path.exists() else shutil.which(tool)))
        else:
            yield Finding(tool, "warn", "not found", "reinstall triton; its wheel contains it")


def _devices() -> Iterator[Finding]:
    from workers import backend_kinds

    count = 0
    for backend in map(backend_kinds.spec, backend_kinds.timed_kinds()):
        try:
            devices = backend.find_devices()
        except TunerError as error:
            yield Finding(f"{backend.kind} device", "fail", error.message, error.hint)
            continue
        for device in devices:
            yield Finding(f"{backend.kind} device", "ok", f"{device.name} ({device.target})")
            count += backend.accelerator
    if not count:
        yield Finding(
            "GPU", "warn", "none found",
            "Triton kernels will be cross-compiled and verified, not measured",
        )  # fmt: skip


def _cache() -> Iterator[Finding]:
    """The folder where calibrations and precompiled headers are kept between runs."""
    from workers import user_cache
    from workers.measure.timers.kept_calibration import list_kept

    folder = user_cache.place()
    if folder.exists() and not user_cache.usable(folder):
        yield Finding(
            "cache", "warn", f"{folder}: not usable, so GPUs are calibrated at every start",
            f"make it writable by you alone, or name another folder in {user_cache.VARIABLE}",
        )  # fmt: skip
    else:
        count = len(list_kept())
        yield Finding("cache", "ok", f"{folder}: {count} calibration{'s'[: count != 1]}")


def _examine_campaigns(settings: Settings, base: Path) -> Iterator[Finding]:
    if settings.campaigns:
        yield Finding("config", "ok", f"{base}: {', '.join(sorted(settings.campaigns))}")
    else:
        yield Finding("config", "warn", f"{base}: no campaigns", "write one with `tuner init`")


def _database(settings: Settings) -> Iterator[Finding]:
    from results_db import migrate
    from results_db.connections import describe, parse_url, sqlite_path

    url = parse_url(settings.database.url)
    name, path = describe(url), sqlite_path(url)
    if path is not None and not path.exists():
        yield Finding("database", "ok", f"{name}: will be created")
        return
    found = migrate.current(settings.database.url)
    if found:
        migrate.refuse_other(found, name)
    yield Finding("database", "ok", f"{name}: schema {found or 'none yet'}")


def _calibration(settings: Settings) -> Iterator[Finding]:
    """The stored calibrations of the devices of this machine."""
    from tuner.cli.workers import calibration_text, calibrations
    from workers import backend_kinds
    from workers.device import find_devices

    known = calibrations(settings)
    for kind in backend_kinds.timed_kinds() if known else ():
        for device in find_devices(kind):
            if calibration := known.get(device.fingerprint):
                yield Finding(f"{kind} calibration", "ok", calibration_text(calibration))


def _ray(settings: Settings) -> Iterator[Finding]:
    address = settings.pool.address
    if settings.pool.kind != "ray" or address in (None, "local", "auto"):
        yield Finding("pool", "ok", f"{settings.pool.kind}, {address or 'started on this machine'}")
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3.0):
            yield Finding("pool", "ok", f"{address} answers")
    except (OSError, ValueError) as error:
        yield Finding(
            "pool", "fail", f"{address}: {error}",
            "start Ray there, or set pool.address to null for a local one",
        )  # fmt: skip


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = Path(settings.paths.results)
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Finding("disk", "fail", f"{folder}: not writable", "set paths.results elsewhere")
        return
    free_gib = shutil.disk_usage(folder).free / 2**30
    state = "ok" if free_gib >= _LOW_DISK_GIB else "warn"
    remedy = "" if state == "ok" else "free some space for raw samples and compiler caches"
    yield Finding("disk", state, f"{folder}: {free_gib:.1f} GiB free", remedy)
