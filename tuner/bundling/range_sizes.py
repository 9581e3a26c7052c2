"""Sizes of a range that between them reach every compiled kernel of its config.

Triton compiles other code for an integer argument that is 1, that is a multiple of 16, and that
needs 64 bits, and kernels make constants of the next power of two. Arguments are products and
quotients of sizes by constants. So all powers of two, and what lies a small power of two above
each of them, reach every combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from search_spaces.records import Value
from tuner.runtime import Entry, Span

_ABOVE = (0, 1, 2, 4, 8)


def list_keys(entry: Entry) -> Iterator[Mapping[str, Value]]:
    """The workload of an entry and, of one that serves a part of a range, those at its sizes.

    Several dims vary one by one, the others at the entry's size, at an odd and at an even one.
    """
    yield entry.key
    for name, span in entry.serves.items():
        rest = {n: _few(each, entry.key[n]) for n, each in entry.serves.items() if n != name}
        for others in itertools.product(*rest.values()):
            fixed = {**entry.key, **dict(zip(rest, others, strict=True))}
            yield from ({**fixed, name: size} for size in list_sizes(span))


def list_sizes(span: Span) -> list[int]:
    """The sizes of a span that matter."""
    powers = [1 << bits for bits in range(span.high.bit_length() + 1)]
    sizes = {power + more for power in powers for more in _ABOVE}
    found = {span.low, span.high, *(size * span.multiple for size in sizes), *sizes}
    return sorted(size for size in found if size in span)


def _few(span: Span, own: Value) -> list[Value]:
    sizes = list_sizes(span)
    odd, even = [s for s in sizes if s % 16], [s for s in sizes if not s % 16]
    return [*dict.fromkeys((own, *odd[-1:], *even[-1:]))]
