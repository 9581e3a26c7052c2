"""The product of four matrices in any order of association."""

from __future__ import annotations

import random

import pytest
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.matrix_chain.products import (
    MATRICES,
    ORDERS,
    cheapest_order,
    flops_of,
    products_of,
)
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4}
USUAL = {**TILE, "num_stages": 2, "SPLIT_K": 1}


def workload(*sizes: int, dtype: str = "float16", **dims: object) -> Workload:
    names = dict(zip(("M", "K", "L", "P", "N"), sizes, strict=True))
    return Workload.of(**names, dtype=dtype, **dims)


def test_every_order_gives_the_product():
    odd, aligned = workload(37, 141, 23, 19, 5), workload(37, 40, 24, 72, 16, dtype="bfloat16")
    jobs = []
    for order in ORDERS:
        config = {**USUAL, "order": order}
        jobs += [("matrix_chain", odd, {**config, "SPLIT_K": splits}) for splits in (1, 4)]
        jobs.append(("matrix_chain", aligned, {**config, "loads": "pointer", "BLOCK_K": 128}))
        described = {name: value for name, value in config.items() if name != "SPLIT_K"}
        persistent = order != "((ab)c)d"
        described |= {"loads": "descriptor", "persistent": persistent}
        jobs.append(("matrix_chain", aligned, described))
    assert wrong(jobs) == []


def test_orders_multiply_all_matrices_from_left_to_right():
    sizes = workload(3, 4, 5, 6, 7)
    for order in ORDERS:
        held = dict(zip(MATRICES, MATRICES, strict=True))
        for product in products_of(sizes, order):
            text = held[product.left] + held[product.right]
            held[product.result] = f"({text})"
        assert held["out"].replace("(", "").replace(")", "") == "abcd"
        assert held["out"][1:-1] == order


def test_the_default_has_the_fewest_operations():
    kernel = load("matrix_chain")
    for each in kernel.workloads():
        order = kernel.default_config(each, H200)["order"]
        least = min(flops_of(each, other) for other in ORDERS)
        assert order == cheapest_order(each)
        assert flops_of(each, order) == least == kernel.cost(each).flops
        found = kernel.space(each).bind(each, H200).sample(random.Random(1), 30)
        assert all(flops_of(each, config["order"]) <= 4 * least for config in found)
    square = kernel.workloads()[3]
    orders = {
        c["order"] for c in kernel.space(square).bind(square, H200).sample(random.Random(1), 99)
    }
    assert orders == set(ORDERS)


def test_products_are_those_of_the_matmul_family():
    """A change of a kernel of that family is a change of this one."""
    kernel, matmul = load("matrix_chain"), load("matmul")
    assert kernel.kernel_hashes() == matmul.kernel_hashes()
    large = kernel.workloads()[3]
    config = kernel.default_config(large, H200)
    launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
    assert len(launches) == 3
    built = build(launches[0], H200)
    assert "wgmma.mma_async" in built.asm["ptx"]
    assert spilled_bytes(built) == 0


def test_small_products_cut_the_tiles():
    kernel, lora = load("matrix_chain"), load("matrix_chain").workloads()[2]
    config = {**kernel.default_config(lora, H200), "SPLIT_K": 8, "loads": "pointer"}
    first, *_, last = kernel.launches(lora, config, meta_tensors(kernel, lora, config))
    assert (first.kwargs["BLOCK_N"], last.kwargs["BLOCK_N"]) == (16, config["BLOCK_N"])
    assert (first.kwargs["SPLIT_K"], last.kwargs["SPLIT_K"]) == (8, 1)


def test_a_missing_size_is_refused():
    dims = workload(3, 4, 5, 6, 7).as_dict()
    del dims["P"]
    with pytest.raises(WorkloadError, match="P is missing"):
        load("matrix_chain").check_workload(Workload.from_mapping(dims))
