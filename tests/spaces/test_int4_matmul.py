"""Products with weights of four bits."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
from spaces_devices import H200, MI300X, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.int4_matmul.triton_kernels import _FLOAT16, _FLOAT16_SCALED
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 16, "BLOCK_N": 32, "GROUP_M": 8, "num_warps": 2, "num_stages": 2}
CHANGES: list[dict[str, object]]
CHANGES = [{}, {"SPLIT_K": 2}, {"scale_sums": True}, {"packed": True}]
TILE |= {"scale_sums": False, "packed": False, "SPLIT_K": 1}


def workload(m: int, n: int, k: int, dtype: str = "float16") -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype=dtype)


def test_every_way_to_scale_and_split_computes_the_product():
    jobs = []
    for dtype in ("float16", "bfloat16"):
        for m, n, k in ((1, 33, 128), (19, 70, 384)):
            small = workload(m, n, k, dtype)
            jobs += [("int4_matmul", small, {**TILE, **changes}) for changes in CHANGES]
    assert wrong(jobs) == []


def test_weights_are_packed_by_halves_of_a_group():
    kernel, small = load("int4_matmul"), workload(2, 3, 256)
    inputs = kernel.make_inputs(small, 1, "cpu")
    by_hand = torch.zeros(3, 256, dtype=torch.float64)
    for row in range(3):
        for at in range(256):
            group, lane = divmod(at, 128)
            byte = int(inputs["w"][group, row, lane % 64])
            q = byte >> 4 if lane >= 64 else byte & 15
            by_hand[row, at] = (q - int(inputs["zero"][group, row])) * float(
                inputs["scale"][group, row]
            )
    assert torch.allclose(kernel.reference(small, inputs)["out"], inputs["a"].double() @ by_hand.T)


def executed(assembly: str, registers: dict[str, int]) -> list[int]:
    """$0 to $3 after the few instructions of 32 bits that widen weights, on float16 pairs."""
    known = dict(registers)

    def value(name: str) -> int:
        return int(name, 16) if name.startswith("0x") else known.get(name, -1)

    def halves(name: str) -> np.ndarray:
        return np.array([value(name)], np.uint32).view(np.float16)

    body = assembly.strip("{ }").split(";")
    for line in filter(None, map(str.strip, body)):
        name, *operands = re.findall(r"[\w.$]+", line)
        if name == ".reg":
            continue
        target, *sources = operands
        if name == "prmt.b32":
            first, second, selector = map(value, sources)
            every = first.to_bytes(4, "little") + second.to_bytes(4, "little")
            chosen = [every[selector >> 4 * at & 0xF] for at in range(4)]
            known[target] = int.from_bytes(bytes(chosen), "little")
        elif name.startswith("fma"):
            a, b, c = map(halves, sources)
            known[target] = int((a * b + c).view(np.uint32)[0])
        elif name == "mov.b32":
            known[target] = value(sources[0])
        else:
            left, right = map(lambda one: value(one) if one in known else int(one, 0), sources)
            known[target] = left >> right if name == "shr.b32" else left & right
    return [known[f"${at}"] for at in range(4)]


@pytest.mark.parametrize("scaled", [False, True])
def test_packed_instructions_widen_four_bytes(scaled):
    word, zero, scale = 0x8F3A701E, 5, 0.5
    pair = np.array([-1024 - zero] * 2, np.float16).view(np.uint32)
    factors = np.array([scale] * 2, np.float16).view(np.uint32)
    registers = {"$4": word, "$5": int(pair[0]), "$6": int(pair[0])}
    registers |= {"$7": int(factors[0]), "$8": int(factors[0])}
    assembly = _FLOAT16_SCALED if scaled else _FLOAT16
    results = np.array(executed(assembly.value, registers), np.uint32).view(np.float16)
    data = word.to_bytes(4, "little")
    numbers = [byte & 15 for byte in data] + [byte >> 4 for byte in data]
    assert results.tolist() == [(q - zero) * (scale if scaled else 1.0) for q in numbers]


def test_a_group_is_whole():
    with pytest.raises(WorkloadError, match="not a multiple of 128") as caught:
        load("int4_matmul").check_workload(workload(4, 4, 200))
    assert "give K=256" in caught.value.hint


@pytest.mark.parametrize("number", [0, 3, 6])
@pytest.mark.parametrize("packed", [False, True])
def test_weights_are_widened_in_registers_without_spills(number, packed):
    kernel = load("int4_matmul")
    large = kernel.workloads()[number]
    config = {**kernel.default_config(large, H200), "packed": packed}
    ptx = assemble(kernel, large, config)
    assert "wgmma.mma_async" in ptx
    assert "cvt.rn" not in ptx.partition("wgmma")[0]


def test_weights_are_not_replaced_while_products_read_them():
    """Products of sm_90 that read registers are waited for before the next weights are widened."""
    kernel = load("int4_matmul")
    for large in kernel.workloads():
        bound = kernel.space(large).bind(large, H200).restrict({"scale_sums": [False]})
        for config in bound.sample(random.Random(1), 20) if bound.size() else []:
            assert config["num_warps"] < 4 or config["BLOCK_N"] < 64
        assert kernel.default_config(large, H200)["scale_sums"]
        assert not kernel.default_config(large, MI300X)["scale_sums"]


def test_few_rows_split_the_weights_over_the_device():
    kernel = load("int4_matmul")
    few, many = kernel.workloads()[1], kernel.workloads()[6]
    assert kernel.default_config(few, H200)["SPLIT_K"] > 1
    assert "SPLIT_K" not in kernel.default_config(many, H200)
    bound = kernel.space(few).bind(few, MI300X)
    assert not any(config["packed"] for config in bound.enumerate())
