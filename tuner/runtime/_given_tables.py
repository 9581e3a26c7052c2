"""Tables as users give them to `apply`: files, folders, tables, and any of these by kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from ._table import Table
from ._table_files import PathLike, load
from ._text import printable
from ._warn import warn_once

OneTable: TypeAlias = PathLike | Table
#: A file or folder, a table, several of these, or a mapping from `module:object` to these.
Tables: TypeAlias = OneTable | Iterable[OneTable] | Mapping[str, OneTable | Iterable[OneTable]]


def read_tables(given: Tables) -> list[tuple[str, Table]]:
    """The kernels and their tables, in order. What is wrong with a file is logged once.

    A mapping names the kernel of its tables. All other tables name the place of theirs.
    """
    if isinstance(given, Mapping):
        return [
            (name, table) for name, tables in given.items() for _, table in _tables(tables, name)
        ]
    return list(_tables(given, ""))


def place_in(table: Table) -> str:
    """The place of a table's kernel: its name, or the field `place` of the provenance."""
    for name in (table.kernel, f"{table.provenance.get('place') or ''}"):
        if is_place(name):
            return name
    return ""


def is_place(name: str) -> bool:
    """Whether a name is a kernel's place in its library, `module:object`."""
    module, colon, attribute = name.rpartition(":")
    return bool(module and colon and attribute.replace(".", "_").isidentifier())


def _tables(given: OneTable | Iterable[OneTable], kernel: str) -> Iterator[tuple[str, Table]]:
    if isinstance(given, Table):
        yield from _find_names(given, kernel, given.path or "in memory")
    elif isinstance(given, str | os.PathLike):
        yield from _of_path(os.fsdecode(given), kernel)
    else:
        for item in given:
            yield from _tables(item, kernel)


def _of_path(path: str, kernel: str) -> Iterator[tuple[str, Table]]:
    if not os.path.isdir(path):
        table = load(path)
        if table is not None:
            yield from _find_names(table, kernel, path)
        return
    files = sorted(name for name in os.listdir(path) if name.endswith(".json"))
    tables = [load(os.path.join(path, name)) for name in files]
    found = [table for table in tables if table is not None]
    placed = [(name, table) for table in found if (name := kernel or place_in(table))]
    if not placed and os.environ.get("TUNER_OPERATORS") != "1":  # these tables may be of operators
        text = f"folder {path} has no table that names the module:object of its kernel"
        warn_once(("apply", path), text)
    yield from placed


def _find_names(table: Table, kernel: str, path: str) -> Iterator[tuple[str, Table]]:
    name = kernel or place_in(table)
    if is_place(name):
        yield name, table
        return
    text = (
        f"table {path} is of kernel {printable(kernel or table.kernel, 80)} and does not name its "
        'module:object; it is not applied. Name it: apply({"module:object": path})'
    )
    warn_once(("apply", path, name), text)
