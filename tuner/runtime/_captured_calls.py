"""Lookups in tables of captured calls: equal calls, and calls of other sizes.

An entry is *equal* to a launch if its key is that of the launch; arguments that the table calls
free do not count. It is *near* if only sizes differ: integers above 1 that are no constants, and
sizes of tensors, of descriptors and of the grid. Its distance is the Euclidean one of their log2.
Strides, shared memory and addresses do not count in either, since a kernel sees them through other
arguments. A near entry may be used where its config is one of the library's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ._call_key import (
    GRID,
    call_key,
    describe,
    grid_text,
    is_call_key,
    is_equal,
    is_of_launch,
    sizes_alone,
)
from ._decorators import Decorated
from ._entry import Entry, Hit, Value
from ._memo import ABSENT
from ._table import Table, miss_text

#: A number in the text of a tensor, descriptor or grid; not a digit of a dtype.
_NUMBER = re.compile(r"(?<![\w.+-])\d+(?![\w.])")


def is_captured(table: Table) -> bool:
    """Whether the entries of a table are calls."""
    return any(is_call_key(entry.key) for entry in table.entries)


def free_of(table: Table) -> frozenset[str]:
    """The arguments that a table calls free."""
    found = table.provenance.get("free")
    return frozenset(found.split(",")) if isinstance(found, str) else frozenset()


def counted_of(table: Table, names: Collection[str]) -> frozenset[str]:
    """The arguments that count in a lookup of a captured table, except those in its keys."""
    return frozenset(names) - free_of(table) if is_captured(table) else frozenset()


def find_calls(
    table: Table,
    parts: Decorated,
    named: Mapping[str, Any],
    defaults: Mapping[str, Any],
    grid: Any,
) -> tuple[list[Hit], str]:
    """The hit of the entry that is equal to a launch, else those of near ones, nearest first; and
    the reason for a miss.

    named: all arguments of the launch, with defaults.
    """
    free = free_of(table)
    if any(not isinstance(named.get(name, 0), bool | int | float) for name in free):
        return [], f"table {table.path} has free arguments that are no numbers here"
    skipped = {name for entry in table.entries for name in entry.config} | parts.computed
    fixed = [name for name in parts.names if name in named and name not in skipped]
    whole = call_key({name: named[name] for name in fixed if name not in free}, grid)
    unset = {name for name in fixed if name in free or _has_default(name, named, defaults)}
    entries = [e for e in table.index.values() if unset.union(e.key).issuperset(fixed)]
    equal = [entry for entry in entries if is_of_launch(entry.key, named, grid)]
    # As in other tables, 1 matches an entry of true where there is none of 1.
    equal.sort(key=lambda e: any(type(e.key[n]) is not type(whole.get(n)) for n in e.key))
    if equal:
        return [Hit(equal[0].config, "exact", 0.0, equal[0], table.path)], ""
    near = sorted(_list_near(entries, named, grid, parts.constants), key=lambda pair: pair[0])
    hits = [Hit(entry.config, "nearest", far, entry, table.path) for far, entry in near]
    return hits, miss_text(table, whole)


def _has_default(name: str, named: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    default, value = defaults.get(name, ABSENT), named[name]
    return value is default or (default is not ABSENT and bool(value == default))


def _list_near(
    entries: Collection[Entry], named: Mapping[str, Any], grid: Any, constants: Collection[str]
) -> Iterator[tuple[float, Entry]]:
    for entry in entries:
        squares = [
            _square(expected, grid_text(grid) if name == GRID else named.get(name, ABSENT),
                    name in constants)
            for name, expected in entry.key.items()
        ]  # fmt: skip
        if (total := sum(squares)) < math.inf:
            # Rounded, so that equal distances stay equal whatever the order of summation.
            yield round(math.sqrt(total), 12), entry


def _square(expected: Value, value: Any, is_constant: bool) -> float:
    """The square of the distance of one argument; infinite where more than sizes differ."""
    if is_equal(expected, value):
        return 0.0
    found = describe(value)
    if is_constant or isinstance(expected, bool) or isinstance(found, bool):
        return math.inf
    if isinstance(expected, int) and isinstance(found, int):
        return _octaves(expected, found) if min(expected, found) > 1 else math.inf
    if not isinstance(expected, str) or not isinstance(found, str):
        return math.inf
    known = sizes_alone(expected)
    if _NUMBER.sub("#", known) != _NUMBER.sub("#", found):
        return math.inf
    pairs = zip(_NUMBER.findall(known), _NUMBER.findall(found), strict=True)
    return sum(_octaves(int(one), int(other)) for one, other in pairs)


def _octaves(one: int, other: int) -> float:
    if one == other:
        return 0.0
    return (math.log2(one) - math.log2(other)) ** 2 if one and other else math.inf
