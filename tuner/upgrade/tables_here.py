"""The tables that can be checked on this machine, each with its kernel and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from tuner.compare import BenchTarget, bench_target, find_spec
from tuner.runtime import Table, TableError, read
from tuner.settings.sections import Settings
from tuner.tables.results import device_facts
from tuner.tables.table_check import table_files
from workers import backend_kinds


@dataclass(frozen=True, slots=True)
class TableHere:
    """A table, its kernel as it is now, and the device to check it on."""

    path: Path
    table: Table
    target: BenchTarget


@dataclass(frozen=True, slots=True)
class Refused:
    """A table that is not checked."""

    path: Path
    #: One line.
    reason: str
    #: Whether the table itself is at fault: malformed, or of a kernel that is gone.
    finding: bool


def tables_here(
    settings: Settings,
    base: Path,
    paths: Sequence[str | Path],
    kernels: Mapping[str, Sequence[Kernel]],
    *,
    any_device: bool = False,
    build_only: bool = False,
) -> tuple[list[TableHere], list[Refused]]:
    """The tables in files and folders that can be checked here, and the others with the reason.

    kernels: declarations by name that precede registered names. any_device: also tables of other
    models of device, on the device here. build_only: the device may be absent. Raises `TunerError`
    where there is no table at all.
    """
    found: list[TableHere] = []
    refused: list[Refused] = []
    files = list(dict.fromkeys(table_files(paths)))
    if not files:
        raise TunerError(
            f"{', '.join(map(str, paths))}: there are no tables", "write them with `tuner export`"
        )
    for path in files:
        try:
            table = read(path)
            spec = find_spec(table.kernel, table.device.kind, kernels, table.launch_hash)
        except TableError as error:
            refused.append(Refused(path, f"{error}", finding=True))
            continue
        except TunerError as error:
            refused.append(Refused(path, f"its kernel is gone: {error.message}", finding=True))
            continue
        try:
            target = bench_target(
                settings, base, spec, target=_target(table, build_only), timed=not build_only
            )
        except TunerError as error:
            refused.append(Refused(path, error.message, finding=False))
            continue
        if reason := _other_device(table, target, any_device or build_only):
            refused.append(Refused(path, reason, finding=False))
        else:
            found.append(TableHere(path, table, target))
    return found, refused


def _target(table: Table, build_only: bool) -> str | None:
    kind = table.device.kind
    if kind not in backend_kinds.target_kinds():
        raise TunerError(f"is of a device of the unknown kind {kind!r}", "install its plug-in")
    backend = backend_kinds.spec(kind)
    if backend.replayed:
        return None
    return table.device.target if build_only and backend.stand_in else kind


def _other_device(table: Table, target: BenchTarget, any_device: bool) -> str:
    """Why the table is not for the device here; empty text where it is."""
    if any_device or table.device.matches(device_facts(target.device)):
        return ""
    return f"is of {table.device.name}, and the device here is {target.device.name}"
