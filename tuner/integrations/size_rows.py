"""The fewest rows of a size table by which a library's lookup gives a function of the size.

A library takes the row whose key is nearest, of two the smaller. Notation: part i of a range has
the sizes l_i..h_i, and its first and last keys are f_i <= e_i, one row if they are equal. A lookup
changes from part i to the next one beyond h_i exactly if e_i + f_(i+1) is 2 h_i or 2 h_i + 1. So
f_(i+1) is a reflection of e_i, and keys that may be e_i form an interval: the reflection of the
interval before, cut to the part, or, with a second row, what lies above its least size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from results_db.range_outcomes import SizeOutcome, divide
from search_spaces.records import Config, config_key
from search_spaces.size_range import Range
from tuner.base.log_ratio import LogRatio


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


# -- rows of a size table that are at no measured size slower than the library's choice today ------
# This is the choice of a range, as tables make it, with one config more at each size. Notation:
# ours(s) is the config that the rows give for size s, today(s) the one that the library launches at
# s without them, and r(s) the interval of ln(time of ours(s) / time of today(s)). ours(s) ships at
# s if r(s) lies below 0, else today(s) does. ours(s) may still serve s if r(s) does not lie above
# 0, and today(s) where ours ships, both within the gain. The fewest parts of the range that one
# config each serves become the new rows.
class Pair(NamedTuple):
    """Two configs to compare at a size."""

    size: int
    config: Config
    today: Config


#: ln(time of the config / time of today's) of pairs, in their order. None: the config cannot be
#: launched or measured there.
Compare: TypeAlias = Callable[[Sequence[Pair]], Sequence[LogRatio | None]]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A table that is not worse at any of the sizes that were looked at."""

    rows: Mapping[int, Config]
    #: Sizes at which the rows as given were slower beyond the interval.
    worse: tuple[int, ...]
    #: How many pairs were compared.
    compared: int
    #: How many of them could not be: there today's config stays.
    unknown: int = 0


def never_worse(
    ours: Callable[[int], Config],
    today: Callable[[int], Config],
    compare: Compare,
    sizes: Iterable[int],
    reach: Range,
    gain: float,
    launched: Callable[[Config], Config] = dict,
) -> Guarded:
    """The rows for a range. sizes: those that are compared, of the range.

    launched: what the library makes of a row; equal launches are never compared.
    """
    outcomes: dict[int, SizeOutcome] = {}
    configs: dict[str, Config] = {}
    pairs: list[Pair] = []
    for size in sorted(set(sizes)):
        pair = Pair(size, ours(size), today(size))
        own, usual = (config_key(launched(each)) for each in pair[1:])
        # Of equal launches the row stays as it is.
        configs |= {usual: pair.today} | {own: pair.config}
        if own == usual:
            outcomes[size] = SizeOutcome(size, None, {own: 0.0}, {}, own)
        else:
            pairs.append(pair)
    compared = list(compare(pairs)) if pairs else []
    for pair, found in zip(pairs, compared, strict=True):
        own, usual = (config_key(launched(each)) for each in pair[1:])
        losses = {usual: 0.0}
        if found is not None and found.high < 0:
            losses = {own: 0.0, usual: max(0.0, -found.value)}
        elif found is not None and found.low <= 0:
            losses[own] = max(0.0, found.value)
        outcomes[pair.size] = SizeOutcome(pair.size, None, losses, {}, next(iter(losses)))
    segments = divide([outcomes[size] for size in sorted(outcomes)], gain, reach)
    return Guarded(
        list_rows([SizePart(each.low, each.high, configs[each.config]) for each in segments]),
        tuple(p.size for p, found in zip(pairs, compared, strict=True) if found and found.low > 0),
        len(pairs),
        compared.count(None),
    )


def choose_sizes(keys: Iterable[int], reach: Range, count: int) -> list[int]:
    """Sizes of a range to compare: where the nearest of the keys changes, the keys, then others.

    `count` in all, drawn by the weights of the range; fewer only if there are no more.
    """
    ordered = sorted(keys)
    switches = [(low + high) // 2 for low, high in pairwise(ordered)]
    edges = (size for switch in switches for size in (switch, switch + 1))
    first = [size for size in dict.fromkeys([*ordered, *edges]) if size in reach]
    drawn = dict.fromkeys([*first, *reach.draw(16 * count, seed=0)])
    return sorted([*drawn][: max(count, len(first))])
