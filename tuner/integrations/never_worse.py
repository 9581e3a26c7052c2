"""Add rows to a size table until no size is slower than with the library's choice today.

A library takes the row nearest to a size, and a config that wins at its own size can lose between
two rows. Notation: `rows` map keys to configs, near(s) is the key that the library takes for size
s, today(s) is the config that it launches at s without our table. Size s is *worse* if the interval
of ln(time of rows[near(s)] / time of today(s)) lies above 0.

Each round gives every stretch of worse sizes one row more: today's config at one of them, or the
config of a neighbouring row. A row is never worse at its own key, so the rounds end. Then each
added row is removed again unless some size is worse without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from search_spaces.log_ratio import LogRatio
from search_spaces.records import Config, config_key


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
    #: Keys that the table did not have.
    added: tuple[int, ...]
    #: Keys whose own config was worse, or not surely faster, and is today's now.
    replaced: tuple[int, ...]
    #: Sizes that were worse at first.
    worse: tuple[int, ...]
    #: How many pairs were compared.
    compared: int
    #: How many of them could not be: these count as worse.
    unknown: int = 0


def never_worse(
    rows: Mapping[int, Config],
    today: Callable[[int], Config],
    compare: Compare,
    sizes: Iterable[int],
    nearest: Callable[[Iterable[int], int], int],
    launched: Callable[[Config], Config] = dict,
    *,
    proven: bool = False,
) -> Guarded:
    """The rows with the fewest changes found so that no size is worse.

    today: the library's row, or its default config. sizes: those that are compared, besides all
    keys. nearest: the library's lookup, over ascending keys. launched: what the library makes of a
    row; equal launches are never compared. proven: a row that is not faster than today's config at
    its own key, beyond the interval, becomes today's.
    """
    guard = _Guard(rows, today, compare, sorted({*sizes, *rows}), nearest, launched)
    at_first = worse = guard.worse_sizes(guard.rows)
    if proven:
        guard.keep_faster_rows()
        worse = guard.worse_sizes(guard.rows)
    while worse:
        for stretch in guard.stretches(worse):
            guard.repair(stretch)
        worse = guard.worse_sizes(guard.rows)
    guard.prune({*guard.rows} - {*rows})
    return Guarded(
        dict(sorted(guard.rows.items())),
        tuple(sorted({*guard.rows} - {*rows})),
        tuple(sorted(key for key in rows if guard.rows[key] != rows[key])),
        tuple(at_first),
        guard.compared,
        guard.unknown,
    )


def sizes_between(keys: Iterable[int], count: int) -> list[int]:
    """`count` sizes to compare: evenly spread in each gap, and where the nearest row changes.

    Small gaps are taken whole; fewer sizes only if there are no more. The keys themselves are not
    among them.
    """
    gaps = [range(low + 1, high) for low, high in pairwise(sorted(keys)) if high > low + 1]
    edges = {size for gap in gaps for size in _edges(gap)}
    found, each = set(sorted(edges)[:count]), 1
    longest = max(map(len, gaps), default=0)
    # Every gap gets the same number of sizes, as far as it has them.
    while each <= longest:
        more = found | {size for gap in gaps for size in _spread(gap, each)}
        if len(more) > count:
            rest = sorted(more - found)
            left = count - len(found)
            return sorted(found | {rest[at * len(rest) // left] for at in range(left)})
        found, each = more, each + 1
    return sorted(found)


def _edges(gap: range) -> set[int]:
    middle = (gap.start - 1 + gap.stop) // 2
    return {size for size in (middle, middle + 1) if size in gap}


def _spread(gap: range, count: int) -> set[int]:
    if count >= len(gap):
        return set(gap)
    return {gap[(2 * at + 1) * len(gap) // (2 * count)] for at in range(count)}


class _Guard:
    """The table as it grows, and all comparisons so far."""

    def __init__(
        self,
        rows: Mapping[int, Config],
        today: Callable[[int], Config],
        compare: Compare,
        sizes: Sequence[int],
        nearest: Callable[[Iterable[int], int], int],
        launched: Callable[[Config], Config],
    ) -> None:
        self.rows = dict(rows)
        self.compared = self.unknown = 0
        self._compare, self._sizes = compare, sizes
        self._nearest, self._launched = nearest, launched
        self._today = {size: today(size) for size in sizes}
        self._known: dict[tuple[int, str], LogRatio | None] = {}

    def worse_sizes(
        self, rows: Mapping[int, Config], among: Iterable[int] | None = None
    ) -> list[int]:
        """The sizes that are worse with these rows; compares what is not known, in one call."""
        keys = sorted(rows)
        picks = {
            size: rows[self._nearest(keys, size)]
            for size in (self._sizes if among is None else among)
        }
        self._learn(picks)
        return [size for size, config in picks.items() if self._is_worse(size, config)]

    def keep_faster_rows(self) -> None:
        """Today's config for each row that is not surely faster at its own key."""
        for key, config in self.rows.items():
            if not self._is_today(key, config):
                comparison = self._known[key, config_key(config)]
                if comparison is None or comparison.high >= 0:
                    self.rows[key] = self._today[key]

    def stretches(self, worse: Sequence[int]) -> Iterator[list[int]]:
        """Neighbouring worse sizes of one row."""
        keys, at = sorted(self.rows), {size: index for index, size in enumerate(self._sizes)}
        stretch: list[int] = []
        for size in worse:
            together = stretch and at[size] == at[stretch[-1]] + 1
            if together and self._nearest(keys, size) == self._nearest(keys, stretch[-1]):
                stretch.append(size)
                continue
            if stretch:
                yield stretch
            stretch = [size]
        yield stretch

    def repair(self, stretch: Sequence[int]) -> None:
        """Add the row, or replace the row's config, that leaves the fewest sizes worse."""
        best: tuple[int, int, Config] | None = None
        for size, config in self._offers(stretch):
            rows = {**self.rows, size: config}
            keys = sorted(rows)
            moved = [one for one in self._sizes if self._nearest(keys, one) == size]
            left = len(self.worse_sizes(rows, {*moved, *stretch}))
            if best is None or left < best[0]:
                best = (left, size, config)
            if not left:
                break
        assert best is not None
        self.rows[best[1]] = best[2]

    def prune(self, keys: Iterable[int]) -> None:
        """Remove keys without which no size is worse, until none is left."""
        waiting = sorted(keys)
        while True:
            needless = next((key for key in waiting if self._is_needless(key)), None)
            if needless is None:
                return
            del self.rows[needless]
            waiting.remove(needless)

    def _is_needless(self, key: int) -> bool:
        keys = sorted(self.rows)
        moved = [size for size in self._sizes if self._nearest(keys, size) == key]
        rest = {one: config for one, config in self.rows.items() if one != key}
        return bool(rest) and not self.worse_sizes(rest, moved)

    def _offers(self, stretch: Sequence[int]) -> Iterator[tuple[int, Config]]:
        """Rows that are not worse at their own key: the middle first, then the ends."""
        keys = sorted(self.rows)
        at = self._nearest(keys, stretch[0])
        # Without it, a key whose own config is worse would stay.
        if at in stretch:
            yield at, self._today[at]
            return
        beside = [self.rows[key] for key in keys if abs(keys.index(key) - keys.index(at)) == 1]
        places = dict.fromkeys((stretch[len(stretch) // 2], stretch[0], stretch[-1]))
        for size in places:
            yield size, self._today[size]
        for size in places:
            self._learn_all(size, beside)
            yield from ((size, config) for config in beside if not self._is_worse(size, config))

    def _learn_all(self, size: int, configs: Iterable[Config]) -> None:
        for config in configs:
            self._learn({size: config})

    def _learn(self, picks: Mapping[int, Config]) -> None:
        unknown = [
            Pair(size, config, self._today[size])
            for size, config in picks.items()
            if not self._is_today(size, config) and (size, config_key(config)) not in self._known
        ]
        if not unknown:
            return
        found = self._compare(unknown)
        self.compared += len(unknown)
        for pair, comparison in zip(unknown, found, strict=True):
            self._known[pair.size, config_key(pair.config)] = comparison
            self.unknown += comparison is None

    def _is_worse(self, size: int, config: Config) -> bool:
        if self._is_today(size, config):
            return False
        comparison = self._known[size, config_key(config)]
        return comparison is None or comparison.low > 0

    def _is_today(self, size: int, config: Config) -> bool:
        return self._launched(config) == self._launched(self._today[size])
