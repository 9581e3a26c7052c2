"""Products of float8 codes with every kind of scales, and as float16 where there are none."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, MI300X, assemble
from spaces_interpret import wrong

from search_spaces.kernels.codes import FLOAT8
from search_spaces.kernels.fp8_matmul.kernel import SCALES
from search_spaces.records import Workload
from search_spaces.registry import load
from workers.device import offline

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4}
TILE |= {"num_stages": 2, "SPLIT_K": 1, "dot": "float8", "fast": False}
DESCRIPTOR = {"loads": "descriptor", "persistent": False}


def workload(scales: str, m: int, n: int, k: int) -> Workload:
    return Workload.of(M=m, N=n, K=k, scales=scales, dtype=FLOAT8)


def tile(scales: str, **values: object) -> dict[str, object]:
    config = {**TILE, **values}
    return {**config, "BLOCK_K": 128} if scales == "block128" else config


@pytest.mark.parametrize("scales", SCALES)
def test_every_way_to_load_split_and_multiply_computes_the_product(scales):
    odd, aligned = workload(scales, 37, 141, 203), workload(scales, 37, 141, 208)
    configs = [tile(scales, SPLIT_K=splits) for splits in (1, 2)]
    configs += [tile(scales, swap=True), tile(scales, swap=True, BLOCK_N=256)]
    configs += [tile(scales, dot="float16"), tile(scales, BLOCK_N=256, fast=True)]
    jobs = [("fp8_matmul", odd, config) for config in configs]
    for extra in ({}, {"persistent": True}, {"SPLIT_K": 2}, {"swap": True}):
        jobs += [("fp8_matmul", aligned, tile(scales, **{**DESCRIPTOR, **extra}))]
    assert wrong(jobs) == []


def test_a_scale_belongs_to_its_block():
    kernel, small = load("fp8_matmul"), workload("block128", 3, 130, 260)
    inputs = dict(kernel.make_inputs(small, 1, "cpu"))
    assert (inputs["a_scale"].shape, inputs["b_scale"].shape) == ((3, 3), (2, 3))
    by_hand = torch.zeros(3, 130, dtype=torch.float64)
    for at in range(260):
        a = inputs["a"][:, at].double() * inputs["a_scale"][at // 128].double()
        scales = inputs["b_scale"][:, at // 128].double().repeat_interleave(128)[:130]
        by_hand += a[:, None] * (inputs["b"][:, at].double() * scales)[None, :]
    assert torch.allclose(kernel.reference(small, inputs)["out"], by_hand)


@pytest.mark.parametrize("number", [1, 2, 8])
def test_the_default_uses_tensor_cores_of_float8_and_does_not_spill(number):
    kernel = load("fp8_matmul")
    large = kernel.workloads()[number]
    config = kernel.default_config(large, H200)
    variants = [config, {**config, "loads": "descriptor", "persistent": True}]
    for variant in variants:
        bound = kernel.space(large).bind(large, H200)
        assert bound.why_not(variant) is None
        ptx = assemble(kernel, large, variant)
        assert ".f32.e4m3.e4m3" in ptx
        assert "wgmma.mma_async" in ptx


def test_transposed_tiles_of_few_rows_use_the_large_instructions():
    kernel = load("fp8_matmul")
    few = kernel.workloads()[4]
    config = {**kernel.default_config(few, H200), "swap": True, "num_warps": 4}
    assert "wgmma.mma_async.sync.aligned.m64n16k32" in assemble(kernel, few, config)


def test_targets_without_float8_multiply_float16():
    kernel = load("fp8_matmul")
    large = kernel.workloads()[0]
    for device in (MI300X, offline("cuda:80")):
        bound = kernel.space(large).bind(large, device)
        config = kernel.default_config(large, device)
        assert config["dot"] == "float16"
        assert bound.why_not(config) is None
        assert "products of float8" in str(
            bound.why_not({**config, "dot": "float8", "fast": False})
        )
