"""Look up the config of a workload: find the kernel's table, then apply the table's rule."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ._device import NEAREST, current_device, several_models
from ._device_facts import DeviceFacts
from ._entry import Hit, Value
from ._table import Table, find_in, miss_text
from ._table_files import (
    FoundTable,
    PathLike,
    Stale,
    find_table,
    forget_tables,
    list_tables,
    search_path,
)
from ._warn import forget_warnings, warn_once

#: Lookups that are cached per process; the cache is emptied when it is full.
MAX_CACHED = 16384
PACKAGED = Path(__file__).parent.parent / "tables"

_hits: dict[tuple[object, ...], Hit | None] = {}


def clear() -> None:
    """Forget tables, lookups and warnings: tables are read from disk again."""
    forget_tables()
    _hits.clear()
    forget_warnings()


def lookup(
    kernel: str,
    key: Mapping[str, Value],
    *,
    tables: PathLike | Iterable[PathLike] | None = None,
    device: DeviceFacts | str | None = None,
    default: Mapping[str, Value] | None = None,
    source: str = "",
    stale: Stale = "fallback",
    quiet: bool = False,
) -> Hit | None:
    """The config of a workload: exact, else nearest by the table's rule, else `default` or None.

    tables: files and folders, searched in order; by default those in the environment variable
    TUNER_TABLES, then this package's own. device: facts or an exact name; by default the current
    device. `nearest`: the current one and, where it has no table, its nearest sibling. source:
    `kernel_hash` of the kernel, compared where given. stale: `use` admits a table of another
    toolchain or of other source code. quiet: whether nothing is logged but files at fault. Never
    raises for the content of a file; each reason for a miss is logged once. Results are cached
    until `clear()`.
    """
    try:
        hit = _hits[kernel, tables, device, source, stale, *key.items()]
    except KeyError:
        hit = _lookup(kernel, key, tables, device, source, stale, quiet)
    except TypeError:  # a list of tables, or a key that cannot be in any table
        listed = tables if tables is None or isinstance(tables, str | os.PathLike) else (*tables,)
        hit = _lookup(kernel, key, listed, device, source, stale, quiet)
    return Hit(default, "default") if hit is None and default is not None else hit


def find_tables(kernel: str) -> tuple[Table, ...]:
    """All tables of a kernel for the current device: of `TUNER_TABLES`, then this package's own.

    Those of another toolchain come after all others, and those of sibling cards at the end, each
    only where its folder has none for this device. What files are at fault is logged once.
    """
    found, problem = list_tables(kernel, search_path(None, [PACKAGED]), current_device())
    if problem:
        warn_once((kernel, problem), f"kernel {kernel}: {problem}")
    return found


def _lookup(
    kernel: str,
    key: Mapping[str, Value],
    tables: PathLike | Iterable[PathLike] | None,
    device: DeviceFacts | str | None,
    source: str,
    stale: Stale,
    quiet: bool,
) -> Hit | None:
    siblings = True if device == NEAREST else None
    given = None if device == NEAREST else device
    facts = DeviceFacts(given) if isinstance(given, str) else given or current_device()
    paths = search_path(tables, [PACKAGED])
    sources = frozenset([source]) if source else frozenset()
    found = find_table(kernel, paths, facts, sources, stale, siblings)
    if found.problem and (found.is_faulty or not quiet):
        text = f"kernel {kernel}: {found.problem}; {_consequence(found)}"
        warn_once((kernel, found.problem), text)
    hit = find_in(found.table, key, quiet=quiet) if found.table else None
    if found.table and hit is None and not quiet:
        text = f"kernel {kernel}: {miss_text(found.table, key)}; no config"
        warn_once((kernel, found.table.path), text)
    # The cache's keys do not distinguish True from 1.
    if found.table and found.table.distinguishes_booleans:
        return hit
    # The current device may still change: torch may be loaded later, or another card selected.
    is_final = given is not None or (facts is not None and not several_models())
    if is_final and (tables is None or isinstance(tables, str | os.PathLike | tuple)):
        if len(_hits) >= MAX_CACHED:
            _hits.clear()
        try:
            _hits[kernel, tables, device, source, stale, *key.items()] = hit
        except TypeError:
            return hit
    return hit


def _consequence(found: FoundTable) -> str:
    return f"using {found.table.path}" if found.table else "no config"
