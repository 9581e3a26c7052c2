"""What runs fastest for a workload without an entry, from the entries of its kernel's table.

Notation: k is the workload, e the key of an entry, a(k) the alignment of k: log2 of the bytes by
which the rows of all its tensors are aligned, 4 at most.

    d(k, e)^2 = (a(k) - a(e))^2 + the sum over all dims n of

        (log2 k[n] - log2 e[n])^2   for sizes; of numbers of rows, tokens and the like, which
                                    programs share without a change to their code, 0.3^2 times as
                                    much, and 0.4^2 where e has more, since a config for many rows
                                    may leave multiprocessors idle at few; an entry that was chosen
                                    for a part of a range stands for all of its sizes, as in lookups
        0                           for equal values, and for float16 and bfloat16, since kernels
                                    move the same bytes of both
        4                           for other values

The nearest entry decides whose config is right for k, as the kernel declares. A baseline adapts to
k itself, and so keeps its time relative to the others. The entry's config does not: it may lose
`spread` nats for every unit of d. So

    time of the config at k = time at e * exp(spread * d)

is as good as certain, and the implementation with the least time runs. The spread of a family is
the 80 % quantile of what configs lose from workload to workload in results databases
(`benchmarks/prediction_error.py` fits `spreads.json`, and judges predictions without the entries of
the same width).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from search_spaces.kernel import Kernel
from search_spaces.records import Config, Device, Value, Workload
from tuner import runtime

_SPREADS: dict[str, float] = json.loads((Path(__file__).parent / "spreads.json").read_text())
_HALVES = ("float16", "bfloat16")
#: Dims that say how many like items there are, and what an octave counts towards more and fewer.
_COUNTS, _TO_MORE, _TO_FEWER = frozenset({"rows", "tokens", "batch", "sequences"}), 0.3, 0.4
#: d of a dim that is no size.
_OTHER = 2.0
#: Bytes of the widest load; registers of a multiprocessor, which tables do not name.
_WIDEST, _REGISTERS = 16, 65536


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The entry that decides, and what is lost on the way from it."""

    entry: runtime.Entry
    distance: float
    #: Time of the entry's config at the workload over that at the entry, at most.
    loss: float


def find_neighbour(
    tables: Sequence[runtime.Table], kernel: Kernel, workload: Workload, key: Mapping[str, Value]
) -> Neighbour | None:
    """The nearest entry whose config is right for the workload; None where there is none.

    key: the workload as tables have it. Of equally near entries, that of the first table decides.
    """
    return next(find_neighbours(tables, kernel, workload, key), None)


def find_neighbours(
    tables: Sequence[runtime.Table], kernel: Kernel, workload: Workload, key: Mapping[str, Value]
) -> Iterator[Neighbour]:
    """All such entries, the nearest first."""
    ranked = [
        (measure_distance(kernel, key, entry), entry, table.device)
        for table in tables
        for entry in table.entries
    ]
    spread = _SPREADS.get(kernel.name, _SPREADS["others"])
    for distance, entry, facts in sorted(ranked, key=lambda each: each[0]):
        if distance == math.inf:
            return
        if _is_right(kernel, workload, entry.config, device_of(facts)):
            yield Neighbour(entry, distance, math.exp(spread * distance))


def measure_distance(kernel: Kernel, key: Mapping[str, Value], entry: runtime.Entry) -> float:
    """d(key, entry) of the module's notation; infinite where they have other dims."""
    if key.keys() != entry.key.keys():
        return math.inf
    moved = runtime.move_towards(key, entry)
    parts = [_measure(name, value, moved[name]) for name, value in key.items()]
    one, other = (_align(kernel, Workload.from_mapping(each)) for each in (key, moved))
    return math.hypot(*parts, one - other)


def _measure(name: str, one: Value, other: Value) -> float:
    if one == other or (one in _HALVES and other in _HALVES):
        return 0.0
    sizes = [each for each in (one, other) if type(each) is int and each > 0]
    if len(sizes) < 2:
        return _OTHER
    octaves = math.log2(sizes[0] / sizes[1])
    if name in _COUNTS:
        return max(_TO_MORE * octaves, -_TO_FEWER * octaves)
    return abs(octaves)


@lru_cache(4096)
def _align(kernel: Kernel, workload: Workload) -> float:
    """a(workload): of tensors of several dims; those of one are aligned whatever their size."""
    tensors = [each for each in kernel.make_inputs(workload, 0, "meta").values() if each.ndim > 1]
    rows = [each.shape[-1] * each.element_size() for each in tensors]
    return math.log2(min((row & -row for row in [*rows, _WIDEST] if row), default=_WIDEST))


def _is_right(kernel: Kernel, workload: Workload, config: Config, device: Device) -> bool:
    """Whether the kernel's declaration says that a config is right for a workload."""
    bound = kernel.space(workload).bind(workload, device)
    return kernel.declares(config) and bound.why_invalid(config) is None


def device_of(facts: runtime.DeviceFacts) -> Device:
    """The device of a table, as kernels take it."""
    return Device(
        facts.kind, facts.name, facts.target, facts.sm_count, facts.memory_bytes,
        facts.shared_bytes, _REGISTERS,
    )  # fmt: skip
