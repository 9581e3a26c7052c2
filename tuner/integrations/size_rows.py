"""The fewest rows of a size table by which a library's lookup gives a function of the size.

A library takes the row whose key is nearest, of two the smaller. Notation: part i of a range has
the sizes l_i..h_i, and its first and last keys are f_i <= e_i, one row if they are equal. A lookup
changes from part i to the next one beyond h_i exactly if e_i + f_(i+1) is 2 h_i or 2 h_i + 1. So
f_(i+1) is a reflection of e_i, and keys that may be e_i form an interval: the reflection of the
interval before, cut to the part, or, with a second row, what lies above its least size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from search_spaces.records import Config


class SizePart(NamedTuple):
    """Sizes from `low` to `high`, both included, that one config serves."""

    low: int
    high: int
    config: Config


@dataclass(frozen=True, slots=True)
class _Chain:
    """Rows of all parts up to one of them."""

    count: int
    #: The keys that the last row may have.
    low: int
    high: int
    #: The first key of the part where it has two rows.
    first: int | None
    before: _Chain | None

    def covers(self, other: _Chain) -> bool:
        """Whether this one is as good however the rows go on."""
        return self.count <= other.count and self.low <= other.low and other.high <= self.high


def list_rows(parts: Sequence[SizePart]) -> dict[int, Config]:
    """Rows by ascending keys. parts: adjacent ones in the order of their sizes."""
    chains = [_Chain(0, 0, 0, None, None)]
    for at, part in enumerate(parts):
        found: list[_Chain] = []
        for chain in chains:
            low, high = part.low, part.high
            if at:
                switch = 2 * parts[at - 1].high
                low, high = max(low, switch - chain.high), min(high, switch + 1 - chain.low)
            if low <= high:
                found.append(_Chain(chain.count + 1, low, high, None, chain))
            if low <= high and low < part.high:
                found.append(_Chain(chain.count + 2, low + 1, part.high, low, chain))
        chains = _leave_out_covered(found)
    return _choose_keys(parts, min(chains, key=lambda chain: chain.count))


def _leave_out_covered(chains: list[_Chain]) -> list[_Chain]:
    kept: list[_Chain] = []
    for chain in sorted(chains, key=lambda each: (each.count, each.low - each.high)):
        if not any(each.covers(chain) for each in kept):
            kept.append(chain)
    return kept


def _choose_keys(parts: Sequence[SizePart], chain: _Chain) -> dict[int, Config]:
    """Rows from the last part to the first one."""
    rows: dict[int, Config] = {}
    low, high = chain.low, chain.high
    for at in reversed(range(len(parts))):
        key = (low + high) // 2
        rows[key] = parts[at].config
        if chain.first is not None:
            key = chain.first
            rows[key] = parts[at].config
        if chain.before and at:
            chain, switch = chain.before, 2 * parts[at - 1].high
            low, high = max(chain.low, switch - key), min(chain.high, switch + 1 - key)
    return dict(sorted(rows.items()))
