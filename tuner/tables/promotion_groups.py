"""Whether entries of a run's table replace those that a published table has for their sizes.

The entries of a range part it without gaps, so they are promoted together or not at all: they are
one group, and every other entry is a group of its own. Both sides are compared as lookups answer:
at the key of each entry, and at both ends of the sizes that it serves, which are the sizes beside
each switch. A group is promoted where it is slower beyond the interval at none of these sizes, and
faster at one at least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from results_db.promotion_records import PromotionOutcome
from search_spaces.records import Value, Workload, config_key
from tuner.runtime import Entry, Span, Table
from tuner.runtime._entry import Key, key_of
from tuner.tables.promotion_evidence import Evidence, Pair, describe_ratio

#: What remains where a promotion is refused.
WHOLE = "`tuner export` replaces the whole table"


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Entries of a run's table that are promoted together, and what they would replace."""

    #: The run's table with these entries only.
    new: Table
    #: The published table with only the entries that leave it with a promotion.
    old: Table
    #: Why they cannot be promoted whatever they measure; empty where they can.
    obstacle: str
    #: The sizes at which both sides have different configs.
    pairs: tuple[Pair, ...]
    #: Whether the run's entries serve sizes that no published entry was chosen for.
    widens: bool

    def judge(self, evidence: Sequence[Evidence]) -> tuple[PromotionOutcome, str]:
        """What becomes of the entries, and why. evidence: of each of `pairs`."""
        refused, promoted = PromotionOutcome.REFUSED, PromotionOutcome.PROMOTED
        is_range = bool(self.new.entries[0].serves)
        if self.obstacle:
            return refused, self.obstacle
        if not self.old.entries:
            return promoted, "new range" if is_range else "new workload"
        if not self.pairs and self.widens:
            return promoted, "the table's configs, for more sizes"
        if not self.pairs:
            return PromotionOutcome.SAME, "the table has this already"
        known = [
            (ratio, (f"{pair.workload.key} " if is_range else "") + describe_ratio(ratio, why))
            for pair, (ratio, why) in zip(self.pairs, evidence, strict=True)
            if ratio is not None and ratio.ends is not None
        ]
        if not known:
            why = "; ".join(dict.fromkeys(why for _, why in evidence if why))
            return refused, f"it cannot be compared: {why}; --remeasure measures both"
        slower = sum(ratio.low > 0 for ratio, _ in known)
        faster = sum(ratio.high < 0 for ratio, _ in known)
        at = f" at {slower or faster or 'any'} of {len(known)} sizes compared" if is_range else ""
        if slower:
            _, figures = max(known, key=lambda each: each[0].low)
            return refused, f"it is slower{at}: {figures}"
        _, figures = min(known, key=lambda each: each[0].high)
        if not faster:
            return refused, f"it is not faster beyond its interval{at}: {figures}"
        return promoted, f"faster{at}, slower at none: {figures}" if is_range else figures


def list_groups(published: Table, table: Table, obstacle: str) -> list[EntryGroup]:
    """The entries of a run's table against a published table.

    obstacle: why none of them can be promoted; empty where some may.
    """
    groups: dict[tuple[tuple[str, ...], Key], list[Entry]] = defaultdict(list)
    for entry in table.entries:
        groups[tuple(sorted(entry.serves)), _rest_of(entry, entry.serves)].append(entry)
    found = (replace(table, entries=tuple(group)) for group in groups.values())
    return [_make_group(published, each, obstacle) for each in found]


def _make_group(published: Table, new: Table, obstacle: str) -> EntryGroup:
    box, one = _join(new.entries), new.entries[0]
    former = [each for each in published.entries if _overlaps(each, one, box)] if box else []
    equal = [published.index.get(key_of(entry.key)) for entry in new.entries]
    former += [each for each in equal if each is not None and each not in former]
    old, held = replace(published, entries=tuple(former)), _join(former)
    if obstacle:
        return EntryGroup(new, old, obstacle, (), widens=False)
    found: dict[Key, Pair] = {}
    for key in _list_keys([*former, *new.entries]) if former else ():
        kept = published.index.get(key_of(key))
        if kept is not None and kept not in former:
            continue  # a published entry of exactly this size stays
        was, now = old.find(key), new.find(key)
        if was is None or was.entry is None:
            continue
        if now is None or now.entry is None:
            obstacle = f"it has no config for {Workload.from_mapping(key).key}, which the table has"
        elif config_key(dict(was.config)) != config_key(dict(now.config)):
            found[key_of(key)] = Pair(Workload.from_mapping(key), was.entry, now.entry)
    for name, span in ((name, span) for entry in former for name, span in entry.serves.items()):
        if _exceeds(span, box.get(name)):
            obstacle = f"the table also serves {name}={span.low}..{span.high}, beyond these sizes"
    widens = any(_exceeds(span, held.get(name)) for name, span in box.items())
    if former and not found and not widens:
        obstacle = ""  # nothing would change
    elif any(entry.median_us is None for entry in new.entries):
        obstacle = "it has no confirmed time"
    if obstacle:
        return EntryGroup(new, old, f"{obstacle}; {WHOLE}", (), widens)
    return EntryGroup(new, old, "", tuple(found.values()), widens)


def _list_keys(entries: Iterable[Entry]) -> Iterator[Mapping[str, Value]]:
    """The key of each entry, and it at the ends of the sizes that the entry serves."""
    for entry in entries:
        yield entry.key
        for name, span in entry.serves.items():
            for size in (span.low, span.high):
                if entry.holds(key := {**entry.key, name: size}):
                    yield key


def _overlaps(entry: Entry, one: Entry, box: Mapping[str, Span]) -> bool:
    """Whether a published entry serves sizes of the box of a range, of which `one` is an entry."""
    if not entry.serves or entry.key.keys() != one.key.keys():
        return False
    dims = {*entry.serves, *box}
    sides = ((entry.serves.get(n) or _point(entry, n), box.get(n) or _point(one, n)) for n in dims)
    return _rest_of(entry, dims) == _rest_of(one, dims) and all(
        ours.low <= theirs.high and theirs.low <= ours.high for ours, theirs in sides
    )


def _point(entry: Entry, name: str) -> Span:
    size = entry.key[name]
    return Span(size, size) if isinstance(size, int) else Span(1, 0)


def _join(entries: Iterable[Entry]) -> dict[str, Span]:
    """The least box around what entries serve, by dim."""
    box: dict[str, Span] = {}
    for entry in entries:
        for name, span in entry.serves.items():
            other = box.get(name, span)
            box[name] = Span(min(span.low, other.low), max(span.high, other.high))
    return box


def _exceeds(span: Span, other: Span | None) -> bool:
    return other is None or span.low < other.low or span.high > other.high


def _rest_of(entry: Entry, dims: Iterable[str]) -> Key:
    """The key without some dims."""
    return key_of({name: value for name, value in entry.key.items() if name not in dims})
