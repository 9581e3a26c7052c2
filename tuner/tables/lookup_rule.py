"""Choose the lookup rule of a table: the dims in which a near workload may use an entry's config.

A config that is correct for one size may be incorrect for another, not only slow. The declared
search space decides: a dim is numeric only if every entry's config stays feasible while that dim
moves over the allowed distance. `tuner/runtime/_nearest.py` applies the rule.

Notation: a factor f moves a dim of size s to s f, at the distance |log2 f|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Workload
from tuner.runtime import Entry, Rule

#: Distances to try, largest first: a factor of 2 or 1.41 in one dim.
DISTANCES = (1.0, 0.5)
_FACTORS = (0.5, 0.6, 0.71, 0.75, 0.95, 1.05, 1.25, 1.41, 1.7, 1.99, 2.0)


def rule_for(kernel: Kernel | None, device: Device, entries: Sequence[Entry]) -> Rule:
    """The lookup rule of a table; `exact` where the kernel's declaration is unavailable."""
    if kernel is None:
        return Rule()
    dims = [name for name in sorted(entries[0].key) if _is_size(name, entries)]
    for distance in DISTANCES:

        def feasible(names: Sequence[str], distance: float = distance) -> bool:
            return all(_is_feasible(kernel, device, entry, names, distance) for entry in entries)

        numeric = [name for name in dims if feasible([name])]
        if numeric and feasible(numeric):
            return Rule("nearest_log2", distance, tuple(numeric))
    return Rule()


def _is_size(name: str, entries: Sequence[Entry]) -> bool:
    values = [entry.key.get(name) for entry in entries]
    return all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values)


def _is_feasible(
    kernel: Kernel, device: Device, entry: Entry, dims: Sequence[str], distance: float
) -> bool:
    """Whether an entry's config is feasible for all near workloads that the kernel accepts."""
    try:
        for workload in _scale_workload(Workload.from_mapping(entry.key), dims, distance):
            try:
                kernel.check_workload(workload)
            except WorkloadError:
                continue
            if kernel.space(workload).bind(workload, device).why_not(entry.config) is not None:
                return False
    except Exception:  # user code may raise anything; then feasibility is not shown
        return False
    return True


def _scale_workload(workload: Workload, dims: Sequence[str], distance: float) -> Iterator[Workload]:
    """The workload with dims scaled, also to odd sizes, for which alignment rules differ."""
    for factor in _FACTORS:
        for low_bit in (0, 1):
            sizes = {name: max(1, round(workload.size(name) * factor)) | low_bit for name in dims}
            gaps = [math.log2(size / workload.size(name)) for name, size in sizes.items()]
            if max(map(abs, gaps)) <= distance:
                yield workload.with_dims(**sizes)
