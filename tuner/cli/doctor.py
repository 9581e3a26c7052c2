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
from typing import TYPE_CHECKING

import typer

from search_spaces import triton_versions
from search_spaces.errors import TunerError
from tuner.cli.command_context import ConfigOption, settings_of
from tuner.cli.console import Format, FormatOption, emit, note

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


def doctor(config: ConfigOption = None, style: FormatOption = Format.TABLE) -> None:
    """Check this machine; exits with 1 if campaigns would fail on it."""
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
