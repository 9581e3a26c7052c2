"""The nearest-lookup rule: which entry serves a workload without an entry.

Notation: k is the requested key, e the key of an entry, N the set of numeric dims, L the largest
distance that the table allows (`Rule.max_distance`).

    d(k, e) = sqrt(sum over n in N of (log2 k[n] - log2 e[n])^2)

d is infinite where k and e have different names, where a dim outside N differs, and where a
differing dim of N is not a positive finite number. The rule takes the entry with the least d <= L.
Of several it takes the one with the fewest dims in which one key has a boolean and the other the
equal number, then the one with the smallest key. `tuner/tables/lookup_rule.py` chooses N and L when
a table is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ._entry import Entry, Rule, Value


def nearest(
    key: Mapping[str, Value], entries: Iterable[Entry], rule: Rule
) -> tuple[float, Entry | None]:
    """The nearest entry within the rule's distance, and its distance; (inf, None) if none is.

    entries: in the order of their keys.
    """
    best: tuple[float, int, Entry | None] = (math.inf, 0, None)
    for entry in entries:
        found = distance(key, entry.key, rule.numeric)
        if found > min(rule.max_distance, best[0]) or found == math.inf:
            continue
        mismatches = _boolean_mismatches(key, entry.key)
        if best[2] is None or (found, mismatches) < best[:2]:
            best = found, mismatches, entry
    return best[0], best[2]


def distance(
    key: Mapping[str, Value], other: Mapping[str, Value], numeric: tuple[str, ...]
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
