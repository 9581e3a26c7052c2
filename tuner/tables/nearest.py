"""Which workloads may borrow their neighbour's config: only where the kernel itself allows it.

A config that is right for one size may be wrong, not merely slow, for another. So the declared
search space is asked: a dim is looked up by nearness only if, for every entry, the config stays
feasible as that dim moves over the whole distance allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Workload
from tuner.runtime import Entry, Rule

#: Distances to try, the widest first: a factor of 2, or of 1.41, in one dim.
DISTANCES = (1.0, 0.5)
_FACTORS = (0.5, 0.6, 0.71, 0.75, 0.95, 1.05, 1.25, 1.41, 1.7, 1.99, 2.0)


def rule_for(kernel: Kernel | None, device: Device, entries: Sequence[Entry]) -> Rule:
    """The lookup rule of a table; `exact` when the kernel is not at hand to be asked."""
    if kernel is None:
        return Rule()
    dims = [name for name in sorted(entries[0].key) if _is_size(name, entries)]
    for distance in DISTANCES:

        def movable(names: Sequence[str], distance: float = distance) -> bool:
            return all(_movable(kernel, device, entry, names, distance) for entry in entries)

        safe = [name for name in dims if movable([name])]
        if safe and movable(safe):
            return Rule("nearest_log2", distance, tuple(safe))
    return Rule()


def _is_size(name: str, entries: Sequence[Entry]) -> bool:
    values = [entry.key.get(name) for entry in entries]
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _movable(
    kernel: Kernel, device: Device, entry: Entry, dims: Sequence[str], distance: float
) -> bool:
    """Whether an entry's config is feasible for every workload near it that the kernel takes."""
    try:
        for workload in _moved(Workload.from_mapping(entry.key), dims, distance):
            try:
                kernel.check_workload(workload)
            except WorkloadError:
                continue
            if kernel.space(workload).bind(workload, device).why_not(entry.config) is not None:
                return False
    except Exception:  # a kernel's own code; whatever it raises, nearness is not proven
        return False
    return True


def _moved(workload: Workload, dims: Sequence[str], distance: float) -> Iterator[Workload]:
    """The workload with dims scaled, also to odd values, which alignment rules tell apart."""
    for factor in _FACTORS:
        for odd in (0, 1):
            sizes = {name: max(1, round(workload.size(name) * factor)) | odd for name in dims}
            gaps = [math.log2(size / workload.size(name)) for name, size in sizes.items()]
            if max(map(abs, gaps)) <= distance:
                yield workload.with_dims(**sizes)
