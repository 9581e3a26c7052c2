"""Which workloads may borrow their neighbour's config: only where the kernel itself allows it.

A config that is right for one size may be wrong, not merely slow, for another. So the declared
search space is asked: a dim is looked up by nearness only if, for every entry, the config stays
feasible as that dim moves over the whole distance allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Workload
from tuner.runtime import Entry, Rule

#: A factor of two in one dim.
MAX_DISTANCE = 1.0
_FACTORS = (0.5, 0.6, 0.75, 0.95, 1.05, 1.4, 1.7, 2.0)


def rule_for(kernel: Kernel | None, device: Device, entries: Sequence[Entry]) -> Rule:
    """The lookup rule of a table; `exact` when the kernel is not at hand to be asked."""
    if kernel is None:
        return Rule()
    dims = [name for name in sorted(entries[0].key) if _is_size(name, entries)]
    safe = [n for n in dims if all(_movable(kernel, device, e, (n,)) for e in entries)]
    together = all(_movable(kernel, device, entry, safe) for entry in entries)
    if not safe or not together:
        return Rule()
    return Rule("nearest_log2", MAX_DISTANCE, tuple(safe))


def _is_size(name: str, entries: Sequence[Entry]) -> bool:
    values = [entry.key.get(name) for entry in entries]
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _movable(kernel: Kernel, device: Device, entry: Entry, dims: Sequence[str]) -> bool:
    """Whether an entry's config is feasible for every workload near it that the kernel takes."""
    try:
        for workload in _moved(Workload.from_mapping(entry.key), dims):
            try:
                kernel.check_workload(workload)
            except WorkloadError:
                continue
            if kernel.space(workload).bind(workload, device).why_not(entry.config) is not None:
                return False
    except Exception:  # a kernel's own code; whatever it raises, nearness is not proven
        return False
    return True


def _moved(workload: Workload, dims: Sequence[str]) -> Iterator[Workload]:
    """The workload with dims scaled, also to odd values, which alignment rules tell apart."""
    for factor in _FACTORS:
        sizes = {name: max(1, round(workload.size(name) * factor)) for name in dims}
        yield workload.with_dims(**sizes)
        yield workload.with_dims(**{name: max(1, size - 1) | 1 for name, size in sizes.items()})
