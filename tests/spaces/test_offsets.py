"""No integer of a kernel overflows, and no access leaves the tensors, at the largest sizes."""

from __future__ import annotations

import random

import pytest
from spaces_devices import GPU_FAMILIES, H200
from spaces_interpret import interpretable
from spaces_offsets import faults, largest_workloads, thin

from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config, Workload
from search_spaces.registry import load

#: Configs of each family and size besides the default.
_RANDOM = 1


def variants(kernel: Kernel, turn: int | None) -> list[tuple[Workload, Config]]:
    """Variants at sizes as large as the dims and the memory of a device allow.

    Each size is the largest beside the smallest ones of one kind of workloads, that of a turn, or
    for no turn also beside the sizes of a usual workload of every kind.
    """
    rng, found, whole = random.Random(3), [], turn is None
    kinds = list({kernel.small_workload(each): each for each in kernel.workloads()}.values())
    for usual in kinds if turn is None else [kinds[turn % len(kinds)]]:
        bases = {usual, thin(kernel, usual)} if whole else {thin(kernel, usual)}
        for base in sorted(bases, key=lambda workload: workload.key):
            for largest in largest_workloads(kernel, base):
                try:
                    bound = interpretable(kernel.space(largest).bind(largest, H200))
                    configs = [kernel.default_config(largest, H200), *bound.sample(rng, _RANDOM)]
                except TunerError:  # no config is feasible
                    continue
                found += [(largest, config) for config in configs]
    return found


@pytest.mark.matrix("interpreter")
@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_offsets_fit_at_the_largest_sizes(name, whole, turn):
    """All kinds of workloads of a family that is tested whole; of another, eight of one in turn."""
    found = variants(load(name), None if whole else turn)
    chosen = found if whole else found[:: max(len(found) // 8, 1)]
    assert faults([(name, *each) for each in chosen]) == []


@pytest.mark.parametrize("name", ["matmul", "stream_k_matmul"])
def test_a_step_along_a_deep_matrix_is_found_in_64_bits(name):
    """Rows of b so long that a step of BLOCK_K of them does not fit into 32 bits."""
    kernel, jobs = load(name), []
    workload = Workload.of(M=16, N=2**25, K=400, dtype="float16")
    bound = interpretable(kernel.space(workload).bind(workload, H200))
    for block in (64, 128):
        configs = bound.restrict({"BLOCK_K": [block]}).sample(random.Random(1), 4)
        jobs += [(name, workload, config) for config in configs]
    assert jobs
    assert faults(jobs) == []
