"""A table: the configs found best for one kernel on one device, and the rule to look them up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

SCHEMA = "tuner-table/1"

Value: TypeAlias = bool | int | float | str | None
#: A workload as a dictionary key: per dim its name, its value, and whether that is a flag.
Key: TypeAlias = tuple[tuple[str, Value, bool], ...]

#: The device kind of replayed recordings: their times are of no run on the device they name.
SIMULATED = "simulated"
#: Memory sizes of one card differ by who reports them (the driver counts what torch cannot use).
MEMORY_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What identifies a device: in a table, or as the running process sees it.

    name: exact, as the driver reports it. kind: `simulated` matches no other kind. target:
    `cuda:90`. Empty or zero facts are unknown and are not compared; power_limit_w and fingerprint
    are provenance, since torch cannot see them.
    """

    name: str
    kind: str = ""
    target: str = ""
    sm_count: int = 0
    memory_bytes: int = 0
    shared_bytes: int = 0
    power_limit_w: float = 0.0
    fingerprint: str = ""

    def matches(self, other: DeviceFacts) -> bool:
        """Whether both describe the same card model, by every fact that both know."""
        if self.name != other.name:
            return False
        if (self.kind == SIMULATED) != (other.kind == SIMULATED):
            return False
        if self.target and other.target and self.target != other.target:
            return False
        if self.sm_count and other.sm_count and self.sm_count != other.sm_count:
            return False
        if self.memory_bytes and other.memory_bytes:
            gap = abs(self.memory_bytes - other.memory_bytes)
            return gap <= MEMORY_TOLERANCE * max(self.memory_bytes, other.memory_bytes)
        return True


@dataclass(frozen=True, slots=True)
class Rule:
    """How a key that is not in the table is treated.

    rule: `exact` (a miss), `nearest_log2` (the nearest entry within max_distance, else a miss) or
    `fallback` (as before, else the table's default config). max_distance: Euclidean, in log2 of
    the dims named in numeric; 1.0 is a factor of two in one dim. Other dims must be equal.
    """

    rule: str = "exact"
    max_distance: float = 0.0
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """The config of one workload.

    median_us, speedup_over_default and its 95 % interval come from the confirmation; None when it
    did not take place. verdict compares the measured winner with the default; after `slower` the
    config written is the default. tie_set: all configs that could not be told from the winner.
    """

    key: Mapping[str, Value]
    config: Mapping[str, Value]
    verdict: str = "undecided"
    median_us: float | None = None
    speedup_over_default: float | None = None
    interval: tuple[float, float] | None = None
    tie_set: tuple[Mapping[str, Value], ...] = ()
    provenance: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A config and where it came from. how: `exact`, `nearest` or `default`."""

    config: Mapping[str, Value]
    how: str
    distance: float = 0.0
    entry: Entry | None = None
    table: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One kernel's configs on one device. `path` is where it was read from."""

    kernel: str
    space_hash: str
    device: DeviceFacts
    toolchain: Mapping[str, str]
    entries: tuple[Entry, ...]
    rule: Rule = Rule()
    default: Mapping[str, Value] | None = None
    provenance: Mapping[str, Value] = field(default_factory=dict)
    #: Digests of what is launched and of what is correct, and of the jitted functions alone.
    launch_hash: str = ""
    check_hash: str = ""
    kernel_hashes: tuple[str, ...] = ()
    #: The one digest of earlier tables, over the text of some sources.
    source_hash: str = ""
    path: str = field(default="", compare=False)
    #: Entries by key, where True is not 1.
    index: Mapping[Key, Entry] = field(init=False, repr=False, compare=False)
    #: Entries by key, where True is 1, as it is to Triton's own tuning.
    loose: Mapping[frozenset[tuple[str, Value]], Entry] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        ordered = sorted(self.entries, key=lambda entry: key_order(entry.key))
        index = {key_of(entry.key): entry for entry in ordered}
        loose = {frozenset(entry.key.items()): entry for entry in reversed(ordered)}
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "loose", loose)

    @property
    def told_by_type(self) -> bool:
        """Whether two entries differ only in True or False against 1 or 0."""
        return len(self.loose) != len(self.index)

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]:
        """The names of the workloads' dims: one sorted tuple, or more where workloads differ."""
        return tuple(dict.fromkeys(tuple(sorted(entry.key)) for entry in self.index.values()))

    @property
    def code(self) -> frozenset[str]:
        """Digests of code that the table speaks for; who asks knows one of them."""
        return frozenset({self.launch_hash, *self.kernel_hashes} - {""} or {self.source_hash})

    def find(self, key: Mapping[str, Value]) -> Hit | None:
        """The config for a workload by the table's rule, or None; equal distances go to the
        entry with the smaller key."""
        entry = self.index.get(key_of(key)) or self.loose.get(frozenset(key.items()))
        if entry is not None:
            return Hit(entry.config, "exact", 0.0, entry, self.path)
        if self.rule.rule == "exact":
            return None
        distance, near = self._nearest(key)
        if near is not None:
            return Hit(near.config, "nearest", distance, near, self.path)
        if self.rule.rule == "fallback" and self.default is not None:
            return Hit(self.default, "default", table=self.path)
        return None

    def _nearest(self, key: Mapping[str, Value]) -> tuple[float, Entry | None]:
        best: tuple[float, int, Entry | None] = (math.inf, 0, None)
        for entry in self.index.values():
            distance = self._distance(key, entry.key)
            if distance > min(self.rule.max_distance, best[0]) or distance == math.inf:
                continue
            unlike = _unlike(key, entry.key)
            if best[2] is None or (distance, unlike) < best[:2]:
                best = distance, unlike, entry
        return best[0], best[2]

    def _distance(self, asked: Mapping[str, Value], known: Mapping[str, Value]) -> float:
        if asked.keys() != known.keys():
            return math.inf
        total = 0.0
        for name, value in asked.items():
            other = known[name]
            if value == other:
                continue
            if name not in self.rule.numeric or not (_positive(value) and _positive(other)):
                return math.inf
            total += (math.log2(value) - math.log2(other)) ** 2  # type: ignore[arg-type]
        # Rounded, so that ties are ties whatever the order the squares were added in.
        return round(math.sqrt(total), 12)


def _unlike(asked: Mapping[str, Value], known: Mapping[str, Value]) -> int:
    """In how many dims one has a flag and the other the number that equals it."""
    return sum(isinstance(asked[name], bool) != isinstance(known[name], bool) for name in asked)


def key_of(key: Mapping[str, Value]) -> Key:
    """A workload as a dictionary key; the order of its names does not matter."""
    return tuple((name, key[name], isinstance(key[name], bool)) for name in sorted(key))


def key_order(key: Mapping[str, Value]) -> tuple[Any, ...]:
    """A total order over workloads: names, then numbers by size, then text; equals by type."""
    return tuple(
        (name, *_value_order(value), type(value).__name__) for name, value in sorted(key.items())
    )


def _value_order(value: Value) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, int | float) else (1, 0, str(value))


def _positive(value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf
