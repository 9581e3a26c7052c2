"""Whether the entries of a range replace those that a published table has for its sizes.

The entries of a range part it without gaps, so they are promoted together or not at all. Both sides
are compared as lookups answer: at the key of each entry, and at both ends of the sizes that it
serves, which are the sizes beside each switch. The range is promoted where it is slower beyond the
interval at none of these sizes, and faster at one at least.
"""

from __future__ import annotations

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
class RangeUpdate:
    """The entries of one range of a run, and the published entries that they would replace."""

    entries: tuple[Entry, ...]
    former: tuple[Entry, ...]
    #: Why they cannot be promoted whatever they measure; empty where they can.
    obstacle: str
    #: The sizes at which both sides have different configs.
    pairs: tuple[Pair, ...]
    #: Whether the run's entries serve sizes that no published entry was chosen for.
    widens: bool

    def judge(self, evidence: Sequence[Evidence]) -> tuple[PromotionOutcome, str]:
        """What becomes of the range, and why. evidence: of each of `pairs`."""
        refused = PromotionOutcome.REFUSED
        if self.obstacle:
            return refused, f"{self.obstacle}; {WHOLE}"
        if not self.former:
            return PromotionOutcome.PROMOTED, "new range"
        if not self.pairs and self.widens:
            return PromotionOutcome.PROMOTED, "the table's configs, for more sizes"
        if not self.pairs:
            return PromotionOutcome.SAME, "the table has these configs"
        known = [
            (ratio, f"{pair.workload.key} {describe_ratio(ratio, why)}")
            for pair, (ratio, why) in zip(self.pairs, evidence, strict=True)
            if ratio is not None and ratio.ends is not None
        ]
        if not known:
            why = "; ".join(dict.fromkeys(why for _, why in evidence if why))
            return refused, f"it cannot be compared: {why}; --remeasure measures both"
        of = f"of {len(known)} sizes compared"
        slowest, figures = max(known, key=lambda each: each[0].low)
        if slowest.low > 0:
            slower = sum(ratio.low > 0 for ratio, _ in known)
            return refused, f"it is slower at {slower} {of}: {figures}"
        fastest, figures = min(known, key=lambda each: each[0].high)
        if fastest.high >= 0:
            return refused, f"it is faster beyond its interval at none {of}: {figures}"
        faster = sum(ratio.high < 0 for ratio, _ in known)
        return PromotionOutcome.PROMOTED, f"faster at {faster} {of}, slower at none: {figures}"


def list_updates(published: Table, table: Table) -> list[RangeUpdate]:
    """The ranges of a run's table against a published table of equal code, device and toolchain."""
    groups: dict[tuple[tuple[str, ...], Key], list[Entry]] = {}
    for entry in table.entries:
        if entry.serves:
            dims = tuple(sorted(entry.serves))
            groups.setdefault((dims, _rest_of(entry, dims)), []).append(entry)
    return [_make_update(published, table, dims, found) for (dims, _), found in groups.items()]


def merge_coverage(
    published: Table, table: Table, promoted: Iterable[Entry]
) -> tuple[Mapping[str, Value], ...]:
    """What is known of the ranges of a published table after these entries of a run's came."""
    changed = {place for entry in promoted for place in _list_places(entry)}
    kept = [each for each in published.coverage if (each["dim"], each["of"]) not in changed]
    new = [each for each in table.coverage if (each["dim"], each["of"]) in changed]
    return (*kept, *new)


def _make_update(
    published: Table, table: Table, dims: Sequence[str], entries: Sequence[Entry]
) -> RangeUpdate:
    keys = {key_of(entry.key) for entry in entries}
    box = {name: _join(entry.serves[name] for entry in entries) for name in dims}
    one = entries[0]
    served = [each for each in published.entries if each.serves and _overlaps(each, one, box)]
    alone = [each for each in published.entries if not each.serves and key_of(each.key) in keys]
    former = [*served, *alone]
    obstacle = next(filter(None, (_find_obstacle(entry, box) for entry in served)), "")
    olds, news = (
        replace(each, entries=tuple(some)) for each, some in ((published, former), (table, entries))
    )
    found: dict[Key, Pair] = {}
    for key in _list_keys([*former, *entries]) if former and not obstacle else ():
        kept = published.index.get(key_of(key))
        if kept is not None and kept not in former:
            continue  # a published entry of exactly this size stays
        old, new = olds.find(key), news.find(key)
        if old is None or old.entry is None:
            continue
        if new is None or new.entry is None:
            obstacle = f"it has no config for {Workload.from_mapping(key).key}, which the table has"
            break
        if config_key(dict(old.config)) != config_key(dict(new.config)):
            found[key_of(key)] = Pair(Workload.from_mapping(key), old.entry, new.entry)
    widens = not served or any(
        span != _join(entry.serves[name] for entry in served)
        for name, span in (box.items() if not obstacle else ())
    )
    return RangeUpdate(tuple(entries), tuple(former), obstacle, tuple(found.values()), widens)


def _list_keys(entries: Iterable[Entry]) -> Iterator[Mapping[str, Value]]:
    """The key of each entry, and it at the ends of the sizes that the entry serves."""
    for entry in entries:
        yield entry.key
        for name, span in entry.serves.items():
            for size in (span.low, span.high):
                if entry.holds(key := {**entry.key, name: size}):
                    yield key


def _find_obstacle(entry: Entry, box: Mapping[str, Span]) -> str:
    """Why a published entry would leave a gap or overlap; empty where it would not."""
    if entry.serves.keys() != box.keys():
        return f"the table has a range over {', '.join(sorted(entry.serves))}"
    for name, span in entry.serves.items():
        if span.low < box[name].low or span.high > box[name].high:
            return (
                f"the table also serves {name}={span.low}..{span.high}, beyond the run's "
                f"{box[name].low}..{box[name].high}"
            )
    return ""


def _overlaps(entry: Entry, one: Entry, box: Mapping[str, Span]) -> bool:
    """Whether a published entry serves sizes of the box of a range, of which `one` is an entry."""
    dims = {*entry.serves, *box}
    if entry.key.keys() != one.key.keys() or _rest_of(entry, dims) != _rest_of(one, dims):
        return False
    sides = (
        (entry.serves.get(name) or _point(entry, name), box.get(name) or _point(one, name))
        for name in dims
    )
    return all(ours.low <= theirs.high and theirs.low <= ours.high for ours, theirs in sides)


def _point(entry: Entry, name: str) -> Span:
    size = entry.key[name]
    return Span(size, size) if isinstance(size, int) else Span(1, 0)


def _join(spans: Iterable[Span]) -> Span:
    found = list(spans)
    return Span(min(span.low for span in found), max(span.high for span in found))


def _rest_of(entry: Entry, dims: Iterable[str]) -> Key:
    """The key without some dims."""
    return key_of({name: value for name, value in entry.key.items() if name not in dims})


def _list_places(entry: Entry) -> Iterator[tuple[str, str]]:
    """The dim and the other dims under which the coverage of an entry's range may stand."""
    for name in entry.serves:
        rest = {other: value for other, value in entry.key.items() if other != name}
        yield name, Workload.from_mapping(rest).key
