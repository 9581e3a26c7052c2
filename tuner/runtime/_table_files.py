"""Find the table of a kernel and device among files and folders."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._cpu import cpu_device
from ._device import takes_siblings, version
from ._device_facts import DeviceFacts
from ._names import file_stem, replace_unsafe
from ._ranks import compare_tables
from ._read import MAX_BYTES, TableError, read
from ._table import Table
from ._text import printable
from ._warn import warn_once

PathLike: TypeAlias = str | os.PathLike[str]
Stale: TypeAlias = Literal["fallback", "use"]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """The result of a search for a table."""

    #: The table to use; None where there is none.
    table: Table | None
    #: One line on what was wrong with the files; empty where nothing was.
    problem: str = ""
    #: Whether a file was at fault: not only of another toolchain, or absent.
    is_faulty: bool = False


#: Folders of tables of bundles in use.
BUNDLED: list[str] = []
_found: dict[tuple[object, ...], FoundTable] = {}
_listed: dict[tuple[object, ...], tuple[tuple[Table, ...], str]] = {}


def forget_tables() -> None:
    """Forget all tables that were read."""
    _found.clear()
    _listed.clear()


def load(path: PathLike) -> Table | None:
    """The table in a file; None, with one warning, for a file that cannot be used."""
    try:
        return read(path)
    except TableError as error:
        warn_once(("load", str(path)), f"table {path} {error}; it is not used")
        return None


def search_path(
    tables: PathLike | Iterable[PathLike] | None, otherwise: Iterable[PathLike]
) -> tuple[str, ...]:
    """The files and folders to search: the given ones, else TUNER_TABLES, bundles, `otherwise`."""
    if tables is None:
        listed = [name for name in os.environ.get("TUNER_TABLES", "").split(os.pathsep) if name]
        return (*listed, *BUNDLED, *(os.fsdecode(path) for path in otherwise))
    if isinstance(tables, str | os.PathLike):
        return (os.fsdecode(tables),)
    return tuple(os.fsdecode(path) for path in tables)


def find_table(
    kernel: str,
    paths: tuple[str, ...],
    device: DeviceFacts | None,
    sources: frozenset[str],
    stale: Stale,
    siblings: bool | None = None,
) -> FoundTable:
    """The first usable table of a kernel for a device. The result is cached.

    siblings: whether the nearest usable table of a sibling card serves where there is no other; by
    default as the environment variable TUNER_DEVICE says. sources: accepted digests of the kernel's
    code; empty for any code. stale: whether a table of another toolchain or of other code is used.
    """
    siblings = takes_siblings() if siblings is None else siblings
    memo = (kernel, paths, device, sources, stale, siblings)
    if memo not in _found:
        found = _found[memo] = _find(*memo)
        compare_tables(kernel, [] if found.table is None else [found.table])
    return _found[memo]


def list_tables(
    kernel: str, paths: tuple[str, ...], device: DeviceFacts | None
) -> tuple[tuple[Table, ...], str]:
    """All tables of a kernel for a device in the order of the paths, and what files are at fault.

    Those of this toolchain come before stale ones, and these before tables of sibling cards: a path
    without a table for the device gives that of its nearest sibling.
    """
    memo = (kernel, paths, device)
    if memo not in _listed:
        found: list[tuple[int, Table]] = []
        problems: list[str] = []
        for path in paths:
            known = [*_candidates(kernel, (path,), problems)]
            own = [(1 if staleness(e) else 0, e) for e in known if is_for_device(e, device)]
            near = None if own else nearest_sibling(known, device)
            found += own if near is None else [(2, near)]
        ranked = sorted(found, key=lambda pair: pair[0])
        _listed[memo] = tuple(table for _, table in ranked), "; ".join(problems[:2])
        compare_tables(kernel, _listed[memo][0])
    return _listed[memo]


def _find(
    kernel: str,
    paths: tuple[str, ...],
    device: DeviceFacts | None,
    sources: frozenset[str],
    stale: Stale,
    siblings: bool,
) -> FoundTable:
    problems: list[str] = []
    stale_tables: list[tuple[Table, str]] = []
    others: list[Table] = []
    for table in _candidates(kernel, paths, problems):
        if not is_for_device(table, device):
            if siblings and (stale == "use" or not staleness(table, sources)):
                others.append(table)
            continue
        reason = staleness(table, sources)
        if not reason:
            return FoundTable(table, "; ".join(problems[:2]), bool(problems))
        stale_tables.append((table, f"table {table.path} {reason}"))
    if stale_tables:
        table, reason = stale_tables[0]
        used = table if stale == "use" else None
        return FoundTable(used, "; ".join([*problems[:1], reason]), bool(problems))
    near = nearest_sibling(others, device)
    if near is not None and device is not None:
        text = "; ".join([*problems[:1], sibling_text(near, device)])
        return FoundTable(near, text, bool(problems))
    where = os.pathsep.join(paths) or "an empty search path"
    name = device.name if device else "an unknown device (torch is not loaded, or finds none)"
    text = "; ".join(problems[:2]) or f"no table for {name} in {where}"
    return FoundTable(None, text, bool(problems))


def _candidates(kernel: str, paths: tuple[str, ...], problems: list[str]) -> Iterator[Table]:
    """The readable tables of a kernel in the order of the paths; appends to `problems`.

    All files together have as many bytes as one may have, so that a launch does not wait longer.
    """
    left = MAX_BYTES
    for path in paths:
        is_folder = os.path.isdir(path) or not path.endswith(".json")
        for file in _files(kernel, path) if is_folder else [path]:
            size = _size(file)
            if size > MAX_BYTES:
                size = 0  # `read` refuses it, and reads nothing
            if size > left:
                problems.append(
                    f"table {file} is not read: the tables of {printable(kernel, 40)} in the "
                    f"search path have more than {MAX_BYTES} bytes together"
                )
                continue
            left -= size
            try:
                table = read(file)
            except TableError as error:
                problems.append(f"table {file} {error}")
                continue
            if table.kernel == kernel:
                yield table
            elif not is_folder:
                problems.append(f"table {file} is of kernel {printable(table.kernel, 40)}")


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return 0


def _files(kernel: str, folder: str) -> list[str]:
    # The second stem finds tables that were written before long names got a digest.
    stems = {file_stem(kernel), replace_unsafe(kernel)}
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return []
    return [
        os.path.join(folder, name)
        for name in names
        if name.endswith(".json") and name.removesuffix(".json").partition("@")[0] in stems
    ]


def is_for_device(table: Table, device: DeviceFacts | None) -> bool:
    """Whether a table was made on this device model, or on this machine's CPU."""
    if table.device.kind == "cpu" and table.device.matches(cpu_device()):
        return True
    return device is not None and table.device.matches(device)


def nearest_sibling(tables: Iterable[Table], device: DeviceFacts | None) -> Table | None:
    """The table of the nearest sibling card; the first of equally near ones, None without any."""
    if device is None:
        return None
    known = [(device.distance_to_sibling(table.device), table) for table in tables]
    found = min(known, key=lambda pair: pair[0], default=None)
    return None if found is None or math.isinf(found[0]) else found[1]


def sibling_text(table: Table, device: DeviceFacts) -> str:
    """What is said of a sibling's table that is used."""
    here = f"{printable(device.name, 80)} ({device.sm_count} multiprocessors)"
    made = f"{printable(table.device.name, 80)} ({table.device.sm_count})"
    return f"no table for {here}; that of {made} is the nearest"


def staleness(table: Table, sources: frozenset[str] = frozenset()) -> str:
    """Why a table is not valid for this process; empty text where it is.

    Compares the code where `sources` has its accepted digests, and Triton's version where the
    table names one, else torch's.
    """
    if sources and not sources & table.code:
        return "was made for other source code of this kernel"
    package = "triton" if table.toolchain.get("triton") else "torch"
    made, running = table.toolchain.get(package, ""), version(package)
    if made and running and made != running:
        return f"was made with {package} {printable(made, 40)}, this is {running}"
    return ""
