"""The nearest-lookup rule: which entry serves a workload without an entry.

Notation: k is the requested key, e the key of an entry, N the set of the entry's numeric dims.

    d(k, e) = sqrt(sum over n in N of (log2 k[n] - log2 e[n])^2)

d is infinite where k and e have different names, where a dim outside N differs, and where a
differing dim of N is not a positive finite number. Under the rule `sizes`, N is the entry's
`sizes`, and d is infinite where a span of them does not hold k[n]: there the entry's config is not
known to be right. An entry that was chosen for a part of a range stands for all of its sizes: in
such a dim e[n] is the size of this part that is nearest to k[n]. Tables of earlier versions have
one N, and a largest distance L (`Rule.max_distance`). The rule takes the entry with the least
finite d (<= L). Of several it takes the one with the fewest dims in which one key has a boolean and
the other the equal number, then the one with the smallest key. `tuner/tables/valid_sizes.py` makes
the spans when a table is built.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from ._entry import Entry, Rule, Value


def nearest(
    key: Mapping[str, Value], entries: Iterable[Entry], rule: Rule
) -> tuple[float, Entry | None]:
    """The nearest entry within the rule's distance, and its distance; (inf, None) if none is.

    entries: in the order of their keys.
    """
    best: tuple[float, int, Entry | None] = (math.inf, 0, None)
    by_sizes = rule.rule == "sizes"
    largest = math.inf if by_sizes else rule.max_distance
    for entry in entries:
        if by_sizes and not entry.holds(key):
            continue
        found = distance(key, move_towards(key, entry), entry.sizes if by_sizes else rule.numeric)
        if found > min(largest, best[0]) or found == math.inf:
            continue
        mismatches = _boolean_mismatches(key, entry.key)
        if best[2] is None or (found, mismatches) < best[:2]:
            best = found, mismatches, entry
    return best[0], best[2]


def move_towards(key: Mapping[str, Value], entry: Entry) -> Mapping[str, Value]:
    """The entry's key with the nearest of the sizes that it was chosen for."""
    if not entry.serves:
        return entry.key
    moved = dict(entry.key)
    for name, span in entry.serves.items():
        size = key.get(name)
        if isinstance(size, int):
            moved[name] = min(max(size, span.low), span.high)
    return moved


def distance(
    key: Mapping[str, Value], other: Mapping[str, Value], numeric: Collection[str]
) -> float:
    """d(key, other) of the module's notation."""
    if key.keys() != other.keys():
        return math.inf
    total = 0.0
    for name, value in key.items():
        known = other[name]
        if value == known:
            continue
        if name not in numeric or not (_is_positive(value) and _is_positive(known)):
            return math.inf
        total += (math.log2(value) - math.log2(known)) ** 2  # type: ignore[arg-type]
    # Rounded, so that equal distances stay equal whatever the order of summation.
    return round(math.sqrt(total), 12)


def _boolean_mismatches(key: Mapping[str, Value], other: Mapping[str, Value]) -> int:
    """Number of dims in which one key has a boolean and the other the equal number."""
    return sum(isinstance(key[name], bool) != isinstance(other[name], bool) for name in key)


def _is_positive(value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf
