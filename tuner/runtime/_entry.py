"""The entries of a table, their keys, and the result of a lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Value: TypeAlias = bool | int | float | str | None
#: A tuple, since a union would be made at each check.
_NUMBERS = (int, float)
#: A workload as a dictionary key: per dim its name, its value and whether the value is a boolean.
Key: TypeAlias = tuple[tuple[str, Value, bool], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The treatment of a key without an entry; `_nearest.py` has the definition."""

    #: `exact` (a miss), `sizes` (the nearest entry whose `sizes` hold the key, else a miss), or of
    #: earlier versions `nearest_log2` (the nearest entry within `max_distance`, else a miss) and
    #: `fallback` (the nearest entry within `max_distance`, else the table's default config).
    rule: str = "exact"
    #: Euclidean distance in log2 of the numeric dims; 1.0 is a factor of two in one dim.
    max_distance: float = 0.0
    #: Dims that may differ from the entry's, under the latter two. All other dims must be equal.
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Sizes from `low` to `high`, both included, that are multiples of `multiple`."""

    low: int
    high: int
    multiple: int = 1

    def __contains__(self, size: object) -> bool:
        if not isinstance(size, int) or isinstance(size, bool):
            return False
        return self.low <= size <= self.high and not size % self.multiple


@dataclass(frozen=True, slots=True)
class Entry:
    """The config of one workload with its evidence."""

    #: The workload: the value of each dim.
    key: Mapping[str, Value]
    config: Mapping[str, Value]
    #: The measured winner against the default config. After `slower`, `config` is the default.
    verdict: str = "undecided"
    #: Median time of `config` in the confirmation; None where there was none.
    median_us: float | None = None
    #: Default time over the time of `config`, from the confirmation.
    speedup_over_default: float | None = None
    #: 95 % interval of that speed-up.
    interval: tuple[float, float] | None = None
    #: All configs that cannot be distinguished from the winner.
    tie_set: tuple[Mapping[str, Value], ...] = ()
    #: Run, task and trial of the results database.
    provenance: Mapping[str, Value] = field(default_factory=dict)
    #: The dtype of each tensor that the kernel was launched with, by parameter; None where unknown.
    dtypes: Mapping[str, str] | None = None
    #: The sizes for which `config` is right, by dim; the other dims must be equal. Under `sizes`.
    sizes: Mapping[str, Span] = field(default_factory=dict)
    #: Of an entry that was chosen for a part of a range: that part, by dim. The key lies in it.
    serves: Mapping[str, Span] = field(default_factory=dict)
    #: What was fastest in the confirmation: `tuned`, which is `config`, or the name of a baseline.
    implementation: str = "tuned"
    #: Time of each baseline over that of `config`, from the confirmation.
    baselines: Mapping[str, float] = field(default_factory=dict)

    def holds(self, key: Mapping[str, Value]) -> bool:
        """Whether `config` is right for the sizes of a workload."""
        return all(key.get(name) in span for name, span in self.sizes.items())


@dataclass(frozen=True, slots=True)
class Hit:
    """The result of a successful lookup: a config and its origin. A miss is None."""

    config: Mapping[str, Value]
    #: `exact`, `range` (the entry was chosen for this size), `nearest` or `default`.
    how: str
    #: Distance to the entry's key, or to the sizes that it was chosen for; else 0.
    distance: float = 0.0
    #: The entry that holds the config; None for `default`.
    entry: Entry | None = None
    #: Path of the table.
    table: str = ""


def key_of(key: Mapping[str, Value]) -> Key:
    """A workload as a dictionary key, independent of the order of its names."""
    return tuple([(name, key[name], isinstance(key[name], bool)) for name in sorted(key)])


def key_order(key: Mapping[str, Value]) -> tuple[Any, ...]:
    """A total order of workloads: by name, then numbers by size, then text, then type."""
    return tuple(
        [(name, *_value_order(key[name]), type(key[name]).__name__) for name in sorted(key)]
    )


def _value_order(value: Value) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, _NUMBERS) else (1, 0, str(value))
