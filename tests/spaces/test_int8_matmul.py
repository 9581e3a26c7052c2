"""Products of int8 codes with a scale for each row of both operands."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4}
TILE |= {"num_stages": 2, "SPLIT_K": 1}


def workload(m: int, n: int, k: int) -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype="int8")


def test_every_way_to_load_and_split_computes_the_product():
    odd, aligned = workload(37, 71, 331), workload(37, 71, 336)
    configs = [{**TILE, "SPLIT_K": splits} for splits in (1, 2, 4)]
    configs += [{**TILE, "swap": True}, {**TILE, "BLOCK_M": 16, "BLOCK_K": 512}]
    jobs = [("int8_matmul", odd, config) for config in configs]
    for persistent in (False, True):
        config = {**TILE, "loads": "descriptor", "persistent": persistent}
        jobs.append(("int8_matmul", aligned, config))
    assert wrong(jobs) == []


def test_sums_are_exact_up_to_the_longest_rows():
    kernel = load("int8_matmul")
    with pytest.raises(WorkloadError, match="more than the 131071"):
        kernel.check_workload(workload(64, 64, 131072))
    longest = torch.full((1, 131071), -128, dtype=torch.int8)
    assert int((longest.long() ** 2).sum()) < 2**31


def test_the_default_uses_tensor_cores_of_int8_and_does_not_spill():
    kernel = load("int8_matmul")
    large = kernel.workloads()[1]
    config = kernel.default_config(large, H200)
    for variant in (config, {**config, "loads": "descriptor", "persistent": True}):
        ptx = assemble(kernel, large, variant)
        assert "wgmma.mma_async" in ptx
        assert ".s32.s8.s8" in ptx
