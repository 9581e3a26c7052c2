"""Lookups in tables of captured calls: equal calls, and calls of other sizes.

An entry is *equal* to a launch if its key is that of the launch; arguments that the table calls
free do not count. It is *near* if only sizes differ: integers above 1 that are no constants, and
sizes of tensors, of descriptors and of the grid. Its distance is the Euclidean one of their log2.
Strides, shared memory and addresses do not count in either, since a kernel sees them through other
arguments. A near entry may be used where its config is one of the library's own, or where the
launch lies between sizes at which its config was verified (`sizes`).

An entry that was chosen for sizes of an argument (`serves`) stands for all of them: it is compared
with this argument at the nearest of them, and with the texts of tensors that name it at that size
(`bfloat16[n_rows,4096]`, `float32[2*n_rows+1]`, `float32[cdiv(n_rows,256)]`). A text `128*n_rows`
or `cdiv(n_rows,256)` alone is an integer. The
argument may be a dim of a tensor, `x[0]`, which is a dim of the key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from ._call_key import GRID, call_key, describe, is_call_key, sizes_alone
from ._decorators import Decorated
from ._entry import Entry, Hit, Key, Span, Value, key_of
from ._memo import ABSENT
from ._nearest import move_towards
from ._table import Table, miss_text

_FOLLOWS = r"(cdiv\()?(?:(\d+)\*)?([^\W\d]\w*(?:\[\d+\])?)([+-]\d+)?(?(1),(\d+)\))"
#: What follows an argument in the text of a tensor, descriptor or tuple.
_FOLLOWING = re.compile(rf"(?<=[\[(,/]){_FOLLOWS}(?=[\]),/])")
#: An integer that follows an argument.
_ALONE = re.compile(_FOLLOWS)
#: A dim of a tensor: the argument and the dim's position.
_DIM = re.compile(r"(\w+)\[(\d+)\]")
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
    launch.update(_list_dims(table, named))
    unset = {name for name in fixed if name in free or _has_default(name, named, defaults)}
    needed = frozenset(fixed) - unset
    entries = [
        (_move_towards(launch, entry), entry)
        for entry in table.index.values()
        if entry.key.keys() >= needed
    ]
    equal = [
        (key, entry)
        for key, entry in entries
        if all(_is_equal(v, launch.get(n, ABSENT)) for n, v in key.items())
        and (not entry.serves or entry.holds(launch))
    ]
    # As in other tables, 1 matches an entry of true where there is none of 1, and an entry for
    # these sizes alone comes before one for a range.
    equal.sort(key=lambda pair: (bool(pair[1].serves), _mixes_kinds(pair[0], launch)))
    if equal:
        entry = equal[0][1]
        how = "range" if entry.serves else "exact"
        return [Hit(entry.config, how, 0.0, entry, table.path)], ""
    distances = ((_distance(key, launch, parts.constants), entry) for key, entry in entries)
    near = sorted((pair for pair in distances if pair[0] < math.inf), key=itemgetter(0))
    by_config: dict[Key, Hit] = {}
    for far, entry in near:
        hit = Hit(entry.config, "nearest", far, entry, table.path)
        by_config.setdefault(key_of(entry.config), hit)
    return [*by_config.values()], miss_text(
        table, {n: launch[n] for n in (*fixed, GRID) if n in launch}
    )


def is_between(entry: Entry, named: Mapping[str, Any]) -> bool:
    """Whether a near launch lies between calls at which the entry's config was verified.

    The kernel sees sizes of tensors through other arguments alone, but those of descriptors and
    tuples itself.
    """
    if not entry.sizes or entry.serves:
        return False
    return all(
        _is_allowed(expected, describe(named.get(name)), entry.sizes.get(name))
        for name, expected in entry.key.items()
    )


def _is_allowed(expected: Value, found: Value, span: Span | None) -> bool:
    if span is not None:
        return found in span
    is_seen = isinstance(expected, str) and "(" in sizes_alone(expected)
    return _is_equal(expected, found) or not (is_seen or type(expected) is int)


def find_octaves(
    key: Mapping[str, Value], other: Mapping[str, Value], fixed: Collection[str]
) -> float:
    """The distance of two keys; infinite where more than sizes differ, or one of `fixed`."""
    plain = {name: sizes_alone(v) if isinstance(v, str) else v for name, v in other.items()}
    return _distance(key, plain, fixed) if key.keys() == other.keys() else math.inf


def _list_dims(table: Table, named: Mapping[str, Any]) -> dict[str, Value]:
    """The dims of a launch's tensors that are dims of the table's keys."""
    found: dict[str, Value] = {}
    for name in {name for names in table.dims for name in names if "[" in name}:
        parts = _DIM.fullmatch(name)
        shape = getattr(named.get(parts[1]), "shape", ()) if parts else ()
        if parts and int(parts[2]) < len(shape):
            found[name] = int(shape[int(parts[2])])
    return found


def _mixes_kinds(key: Mapping[str, Value], launch: Mapping[str, Value]) -> bool:
    return any(type(value) is not type(launch[name]) for name, value in key.items())


def _move_towards(launch: Mapping[str, Value], entry: Entry) -> Mapping[str, Value]:
    """The key of an entry, at the nearest of the sizes that it serves."""
    if not entry.serves:
        return entry.key
    key = move_towards(launch, entry)

    def follow(found: re.Match[str]) -> str:
        _, factor, name, rest, block = found.groups()
        if name not in entry.serves:
            return found[0]
        number = int(factor or 1) * int(key[name] or 0) + int(rest or 0)
        return f"{-(-number // int(block or 1))}"

    def move(value: Value) -> Value:
        if not isinstance(value, str):
            return value
        alone = _ALONE.fullmatch(value) if "*" in value or "cdiv(" in value else None
        if alone and alone[3] in entry.serves:
            return int(follow(alone))
        return _FOLLOWING.sub(follow, value)

    return {name: move(value) for name, value in key.items()}


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
