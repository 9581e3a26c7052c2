"""A table: the best configs of one kernel on one device, and the rule to look them up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeAlias, cast

from ._device_facts import DeviceFacts
from ._entry import Entry, Hit, Key, Rule, Span, Value, key_of, key_order
from ._nearest import nearest
from ._text import printable
from ._warn import warn_once

SCHEMA = "tuner-table/1"
_EXACT = Rule()
#: Entries by the names of some dims, and by all other dims with their values.
_Groups: TypeAlias = Mapping[tuple[str, ...], Mapping[frozenset[tuple[str, Value]], list[Entry]]]


@dataclass(frozen=True, slots=True)
class Table:
    """One kernel's configs on one device."""

    #: Name of the kernel.
    kernel: str
    #: Digest of the search space.
    space_hash: str
    device: DeviceFacts
    #: Versions by package name.
    toolchain: Mapping[str, str]
    entries: tuple[Entry, ...]
    rule: Rule = _EXACT
    #: The kernel's default config, where all workloads share one.
    default: Mapping[str, Value] | None = None
    #: Run, campaign and revision that the table was made from.
    provenance: Mapping[str, Value] = field(default_factory=dict)
    #: The identity of the kernel that was measured.
    launch_hash: str = ""
    #: Digests of its jitted functions, which a process that launches them computes again.
    kernel_hashes: tuple[str, ...] = ()
    #: Of each range of sizes that the table was made for: what is known of its coverage.
    coverage: tuple[Mapping[str, Value], ...] = ()
    #: The file it was read from.
    path: str = field(default="", compare=False)
    #: Entries by key, where True and 1 are different.
    index: Mapping[Key, Entry] = field(init=False, repr=False, compare=False)
    #: Entries by key, where True equals 1, as in Triton's own tuning.
    index_by_equality: Mapping[frozenset[tuple[str, Value]], Entry] = field(
        init=False, repr=False, compare=False
    )
    #: Entries that were chosen for parts of ranges, by the dims of the range and all other dims.
    _by_range: _Groups = field(init=False, repr=False, compare=False)
    #: Entries by the dims that may differ from theirs and all other dims.
    #: They are grouped at the first lookup of a size without an entry.
    _by_sizes: _Groups | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.entries, key=lambda entry: key_order(entry.key))
        index = {key_of(entry.key): entry for entry in ordered}
        by_equality = {frozenset(entry.key.items()): entry for entry in reversed(ordered)}
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "index_by_equality", by_equality)
        ranged = [entry for entry in ordered if entry.serves]
        object.__setattr__(self, "_by_range", _group(ranged, lambda entry: entry.serves))

    @property
    def distinguishes_booleans(self) -> bool:
        """Whether two entries differ only in True or False against 1 or 0."""
        return len(self.index_by_equality) != len(self.index)

    @property
    def numerics(self) -> str:
        """`batch_invariant`: in a range, rows have the same bits at all sizes; else `any`."""
        return str(self.provenance.get("numerics", "any"))

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]:
        """The dims of the workloads: one sorted tuple, or several where workloads differ."""
        return tuple(dict.fromkeys(tuple(sorted(entry.key)) for entry in self.index.values()))

    @property
    def code(self) -> frozenset[str]:
        """Digests of the code that the table is valid for; one of them must match."""
        return frozenset({self.launch_hash, *self.kernel_hashes})

    def find_overlap(self) -> str:
        """Which size two entries serve; empty where none does, and for boxes of several dims."""
        for names, by_rest in self._by_range.items():
            for entries in by_rest.values() if len(names) == 1 else ():
                parts = sorted((entry.serves[names[0]] for entry in entries), key=_low)
                for one, other in pairwise(parts):
                    if other.low <= one.high:
                        return f"serves.{names[0]}: two entries serve {other.low}"
        return ""

    def find(self, key: Mapping[str, Value]) -> Hit | None:
        """Look up a workload: its own entry, else by the table's rule; None for a miss.

        Raises TypeError, ValueError or OverflowError for values that cannot be compared.
        """
        entry = self.index.get(key_of(key)) or self.index_by_equality.get(frozenset(key.items()))
        if entry is not None:
            return Hit(entry.config, "exact", 0.0, entry, self.path)
        if self.rule.rule == "exact":
            return None
        for names, by_rest in self._by_range.items():
            for entry in _list_near(by_rest.get(_rest_of(key, names), []), names, key):
                if entry.holds(key) and all(key[n] in span for n, span in entry.serves.items()):
                    return Hit(entry.config, "range", 0.0, entry, self.path)
        distance, near = nearest(key, self._list_candidates(key), self.rule)
        if near is not None:
            return Hit(near.config, "nearest", distance, near, self.path)
        if self.rule.rule == "fallback" and self.default is not None:
            return Hit(self.default, "default", table=self.path)
        return None

    def _list_candidates(self, key: Mapping[str, Value]) -> Iterable[Entry]:
        """The entries whose fixed dims a workload has, in the order of their keys."""
        if self.rule.rule != "sizes":
            return self.index.values()
        if self._by_sizes is None:
            groups = _group(self.index.values(), lambda entry: entry.sizes)
            object.__setattr__(self, "_by_sizes", groups)
        assert self._by_sizes is not None
        found = [by_rest.get(_rest_of(key, n), []) for n, by_rest in self._by_sizes.items()]
        if len(found) == 1:
            return found[0]
        return sorted(chain.from_iterable(found), key=lambda entry: key_order(entry.key))


def _group(entries: Iterable[Entry], dims: Callable[[Entry], Mapping[str, Span]]) -> _Groups:
    groups: dict[tuple[str, ...], dict[frozenset[tuple[str, Value]], list[Entry]]] = {}
    for entry in entries:
        names = tuple(sorted(dims(entry)))
        groups.setdefault(names, {}).setdefault(_rest_of(entry.key, names), []).append(entry)
    return groups


def _list_near(
    entries: list[Entry], names: tuple[str, ...], key: Mapping[str, Value]
) -> Sequence[Entry]:
    """Of entries in the order of their keys, those that may serve a size: of one dim the nearest.

    A part of a range holds the key of its entry, and parts do not overlap.
    """
    size = key.get(names[0])
    if len(names) != 1 or not isinstance(size, int):
        return entries
    at = bisect_left(entries, size, key=lambda entry: cast("int", entry.key[names[0]]))
    return entries[max(0, at - 1) : at + 1]


def _low(span: Span) -> int:
    return span.low


def _rest_of(key: Mapping[str, Value], names: Sequence[str]) -> frozenset[tuple[str, Value]]:
    """The dims other than `names`; none where the key lacks one of these."""
    if not all(name in key for name in names):
        return frozenset()
    return frozenset(item for item in key.items() if item[0] not in names)


def find_in(table: Table, key: Mapping[str, Value], *, quiet: bool = False) -> Hit | None:
    """`Table.find`, where a key that cannot be compared or hashed is a miss.

    A size beyond the ranges that the table was made for is logged once, without `quiet`.
    """
    try:
        hit = table.find(key)
    except (TypeError, ValueError, OverflowError):
        return None
    if quiet or hit is None or hit.how != "nearest" or hit.entry is None:
        return hit
    if hit.entry.serves:
        sizes = " ".join(
            f"{name}={span.low}..{span.high}" for name, span in hit.entry.serves.items()
        )
        text = (
            f"kernel {table.kernel}: {_describe(key)} is outside the ranges of table {table.path}; "
            f"using the config of {sizes}, {hit.distance:.1f} octaves away"
        )
        warn_once((table.kernel, table.path, "range"), text)
    return hit


def _describe(key: Mapping[str, Value]) -> str:
    return printable(" ".join(f"{name}={printable(value, 40)}" for name, value in key.items()))


def miss_text(table: Table, key: Mapping[str, Value]) -> str:
    """The reason for a miss, as one clause."""
    return f"table {table.path} has no config for {_describe(key)} under its rule {table.rule.rule}"
