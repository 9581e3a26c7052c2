"""Finding the table of a kernel and device among files, and a workload's config in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ._cpu import cpu_device
from ._device import current_device, several_kinds, version
from ._names import file_stem, replaced
from ._read import TableError, printable, read
from ._table import DeviceFacts, Hit, Table, Value
from ._warn import forget, warn_once

PathLike: TypeAlias = str | os.PathLike[str]
Stale: TypeAlias = Literal["fallback", "use"]

#: Kept per process; a server that meets more shapes than this starts remembering anew.
MAX_REMEMBERED = 16384
PACKAGED = Path(__file__).parent.parent / "tables"


@dataclass(frozen=True, slots=True)
class Found:
    """The table to use, if any, and one line on what was wrong on the way to it."""

    table: Table | None
    problem: str = ""


_found: dict[tuple[object, ...], Found] = {}
_hits: dict[tuple[object, ...], Hit | None] = {}


def clear() -> None:
    """Forget what was read, found and said: tables are then read from disk again."""
    _found.clear()
    _hits.clear()
    forget()


def load(path: PathLike) -> Table | None:
    """The table in a file, or None after one warning that says what is wrong with it."""
    try:
        return read(path)
    except TableError as error:
        warn_once(("load", str(path)), f"table {path} {error}; it is not used")
        return None


def lookup(
    kernel: str,
    key: Mapping[str, Value],
    *,
    tables: PathLike | Iterable[PathLike] | None = None,
    device: DeviceFacts | str | None = None,
    default: Mapping[str, Value] | None = None,
    source: str = "",
    stale: Stale = "fallback",
) -> Hit | None:
    """The config of a workload: exact, else nearest by the table's rule, else `default` or None.

    tables: files and folders, searched in order; by default those in the environment variable
    TUNER_TABLES, then this package's own. device: facts or an exact name; by default the current
    one. source: `kernel_hash` of the kernel, compared when given. stale: what to do with a table of
    another toolchain or source. Never raises for what a file holds; a miss is said once.
    Results are remembered: a table that changes on disk is read again after `clear()`.
    """
    try:
        hit = _hits[kernel, tables, device, source, stale, *key.items()]
    except KeyError:
        hit = _lookup(kernel, key, tables, device, source, stale)
    except TypeError:  # a list of tables, or a key that cannot be in any table
        listed = tables if tables is None or isinstance(tables, str | os.PathLike) else (*tables,)
        hit = _lookup(kernel, key, listed, device, source, stale)
    return Hit(default, "default") if hit is None and default is not None else hit


def _lookup(
    kernel: str,
    key: Mapping[str, Value],
    tables: PathLike | Iterable[PathLike] | None,
    device: DeviceFacts | str | None,
    source: str,
    stale: Stale,
) -> Hit | None:
    facts = DeviceFacts(device) if isinstance(device, str) else device or current_device()
    paths = search_path(tables, [PACKAGED])
    sources = frozenset([source]) if source else frozenset()
    found = find(kernel, paths, facts, sources, stale)
    if found.problem:
        warn_once((kernel, found.problem), f"kernel {kernel}: {found.problem}; {_now(found)}")
    hit = find_in(found.table, key) if found.table else None
    if found.table and hit is None:
        warn_once(
            (kernel, found.table.path), f"kernel {kernel}: {miss_text(found.table, key)}; no config"
        )
    # What depends on something that may still change is found again next time.
    if found.table and found.table.told_by_type:
        return hit
    settled = device is not None or (facts is not None and not several_kinds())
    if settled and (tables is None or isinstance(tables, str | os.PathLike | tuple)):
        if len(_hits) >= MAX_REMEMBERED:
            _hits.clear()
        try:
            _hits[kernel, tables, device, source, stale, *key.items()] = hit
        except TypeError:
            return hit
    return hit


def find_in(table: Table, key: Mapping[str, Value]) -> Hit | None:
    """`Table.find`, where a key that cannot be compared or hashed is a miss."""
    try:
        return table.find(key)
    except (TypeError, ValueError, OverflowError):
        return None


def miss_text(table: Table, key: Mapping[str, Value]) -> str:
    """Why a key got nothing from a table, as one clause."""
    asked = " ".join(f"{name}={printable(value, 40)}" for name, value in key.items())
    return f"table {table.path} has nothing for {printable(asked)} by its rule {table.rule.rule}"


def search_path(
    tables: PathLike | Iterable[PathLike] | None, otherwise: Iterable[PathLike]
) -> tuple[str, ...]:
    """Files and folders to look in: the given ones, else the environment's and the defaults."""
    if tables is None:
        listed = os.environ.get("TUNER_TABLES", "").split(os.pathsep)
        return (*(name for name in listed if name), *(os.fsdecode(path) for path in otherwise))
    if isinstance(tables, str | os.PathLike):
        return (os.fsdecode(tables),)
    return tuple(os.fsdecode(path) for path in tables)


def find(
    kernel: str,
    paths: tuple[str, ...],
    device: DeviceFacts | None,
    sources: frozenset[str],
    stale: Stale,
) -> Found:
    """The first usable table of a kernel for a device; remembered."""
    memo = (kernel, paths, device, sources, stale)
    if memo not in _found:
        _found[memo] = _find(kernel, paths, device, sources, stale)
    return _found[memo]


def _find(
    kernel: str,
    paths: tuple[str, ...],
    device: DeviceFacts | None,
    sources: frozenset[str],
    stale: Stale,
) -> Found:
    problems: list[str] = []
    aged: list[tuple[Table, str]] = []
    for table in _candidates(kernel, paths, problems):
        if not _for_device(table, device):
            continue
        reason = staleness(table, sources)
        if not reason:
            return Found(table, "; ".join(problems[:2]))
        aged.append((table, f"table {table.path} {reason}"))
    if aged:
        table, reason = aged[0]
        return Found(table if stale == "use" else None, "; ".join([*problems[:1], reason]))
    where = os.pathsep.join(paths) or "an empty search path"
    name = device.name if device else "an unknown device (torch is not loaded, or sees none)"
    return Found(None, "; ".join(problems[:2]) or f"no table for {name} in {where}")


def _candidates(kernel: str, paths: tuple[str, ...], problems: list[str]) -> Iterator[Table]:
    for given in paths:
        folder = os.path.isdir(given) or not given.endswith(".json")
        for file in _files(kernel, given) if folder else [given]:
            try:
                table = read(file)
            except TableError as error:
                problems.append(f"table {file} {error}")
                continue
            if table.kernel == kernel:
                yield table
            elif not folder:
                problems.append(f"table {file} is of kernel {printable(table.kernel, 40)}")


def _files(kernel: str, folder: str) -> list[str]:
    # Tables named before names had digests are found too: each says which kernel it is of.
    stems = {file_stem(kernel), replaced(kernel)}
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return []
    return [
        os.path.join(folder, name)
        for name in names
        if name.endswith(".json") and name.removesuffix(".json").partition("@")[0] in stems
    ]


def _for_device(table: Table, device: DeviceFacts | None) -> bool:
    if table.device.kind == "cpu" and table.device.matches(cpu_device()):
        return True
    return device is not None and table.device.matches(device)


def staleness(table: Table, sources: frozenset[str] = frozenset()) -> str:
    """Why a table does not speak for this process, or empty text when it does.

    Triton's version decides where a table names one, torch's otherwise.
    """
    if sources and not sources & table.code:
        return "was made for other source code of this kernel"
    package = "triton" if table.toolchain.get("triton") else "torch"
    made, running = table.toolchain.get(package, ""), version(package)
    if made and running and made != running:
        return f"was made with {package} {printable(made, 40)}, this is {running}"
    return ""


def _now(found: Found) -> str:
    return f"using {found.table.path}" if found.table else "no config"
