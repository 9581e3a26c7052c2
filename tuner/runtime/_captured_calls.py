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
from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from ._call_key import GRID, call_key, is_call_key, sizes_alone
from ._decorators import Decorated
from ._entry import Hit, Key, Value, key_of
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
    """The hit of the entry that is equal to a launch, else the nearest ones, one for each config,
    nearest first; and the reason for a miss.

    named: all arguments of the launch, with defaults.
    """
    free = free_of(table)
    if any(not isinstance(named.get(name, 0), bool | int | float) for name in free):
        return [], f"table {table.path} has free arguments that are no numbers here"
    skipped = {name for entry in table.entries for name in entry.config} | parts.computed
    fixed = [name for name in parts.names if name in named and name not in skipped]
    launch = call_key({name: value for name, value in named.items() if name not in free}, grid)
    unset = {name for name in fixed if name in free or _has_default(name, named, defaults)}
    needed = frozenset(fixed) - unset
    entries = [entry for entry in table.index.values() if entry.key.keys() >= needed]
    equal = [entry for entry in entries if all(_is_equal(v, launch.get(n, ABSENT))
                                               for n, v in entry.key.items())]  # fmt: skip
    # As in other tables, 1 matches an entry of true where there is none of 1.
    equal.sort(key=lambda e: any(type(e.key[n]) is not type(launch[n]) for n in e.key))
    if equal:
        return [Hit(equal[0].config, "exact", 0.0, equal[0], table.path)], ""
    distances = ((_distance(entry.key, launch, parts.constants), entry) for entry in entries)
    near = sorted((pair for pair in distances if pair[0] < math.inf), key=itemgetter(0))
    by_config: dict[Key, Hit] = {}
    for far, entry in near:
        hit = Hit(entry.config, "nearest", far, entry, table.path)
        by_config.setdefault(key_of(entry.config), hit)
    return [*by_config.values()], miss_text(
        table, {n: launch[n] for n in (*fixed, GRID) if n in launch}
    )


def _has_default(name: str, named: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    default, value = defaults.get(name, ABSENT), named[name]
    return value is default or (default is not ABSENT and bool(value == default))


def _is_equal(expected: Value, found: Any) -> bool:
    """Whether a value of a key is that of a launch, both as tables hold them."""
    if not isinstance(expected, str) or not isinstance(found, str):
        return bool(found == expected) and isinstance(found, str) == isinstance(expected, str)
    # A tensor without sizes is one of any shape.
    return found == sizes_alone(expected) or (
        "[" not in expected and found.startswith(f"{expected}[")
    )


def _distance(
    key: Mapping[str, Value], launch: Mapping[str, Value], fixed: Collection[str]
) -> float:
    """The distance of a launch; infinite where more than sizes differ, or one of `fixed`."""
    total = 0.0
    for name, expected in key.items():
        found = launch.get(name, ABSENT)
        if not _is_equal(expected, found):
            total += math.inf if name in fixed else _square(expected, found)
            if total == math.inf:
                break
    # Rounded, so that equal distances stay equal whatever the order of summation.
    return round(math.sqrt(total), 12) if total < math.inf else math.inf


def _square(expected: Value, found: Any) -> float:
    """The square of the distance of one argument."""
    if type(expected) is int and type(found) is int:
        return _octaves(expected, found) if min(expected, found) > 1 else math.inf
    if not isinstance(expected, str) or not isinstance(found, str):
        return math.inf
    (form, sizes), (other_form, others) = _sizes_in(sizes_alone(expected)), _sizes_in(found)
    return sum(map(_octaves, sizes, others)) if form == other_form else math.inf


@lru_cache(maxsize=16384)
def _sizes_in(text: str) -> tuple[str, tuple[int, ...]]:
    """A text with its sizes left out, and these."""
    return _NUMBER.sub("#", text), tuple(map(int, _NUMBER.findall(text)))


def _octaves(one: int, other: int) -> float:
    if one == other:
        return 0.0
    return (math.log2(one) - math.log2(other)) ** 2 if one and other else math.inf
