"""Configs that a search would not try on a workload, and that its space says are right there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod

from spaces_devices import H200, meta_tensors
from spaces_interpret import interpretable

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload

#: What is added to a small size, to make odd and prime ones of it.
_SHIFTS = (-3, -2, -1, 0, 0, 1, 2, 3, 5)
#: The interpreter takes a millisecond for the smallest program.
_MOST_PROGRAMS = 2000


def foreign_configs(
    kernel: Kernel, rng: random.Random, draws: int
) -> Iterator[tuple[Workload, Config]]:
    """Workloads of small, odd sizes with valid configs of others that a search leaves out there."""
    workloads = list(kernel.workloads())
    for _ in range(draws):
        source, other = rng.choice(workloads), rng.choice(workloads)
        target = _small(kernel, source, other, rng)
        try:
            kernel.check_workload(target)
            configs = interpretable(kernel.space(source).bind(source, H200)).sample(rng, 1)
            bound = kernel.space(target).bind(target, H200)
        except TunerError:
            continue
        for config in configs:
            left_out = bound.why_not(config) is not None and bound.why_invalid(config) is None
            if left_out and _programs(kernel, target, config) <= _MOST_PROGRAMS:
                yield target, config


def _programs(kernel: Kernel, workload: Workload, config: Config) -> int:
    """The programs of all launches of a variant."""
    launches = kernel.launches(workload, config, meta_tensors(kernel, workload, config))
    return sum(prod(launch.grid) for launch in launches)


def _small(kernel: Kernel, source: Workload, other: Workload, rng: random.Random) -> Workload:
    """One workload with the small sizes of another, moved a little."""
    small = kernel.small_workload(other)
    sizes = {name: small[name] for name in small if type(small[name]) is int and name in source}
    moved = {name: max(1, size + rng.choice(_SHIFTS)) for name, size in sizes.items()}
    return source.with_dims(**moved)
