"""Batched products: transposed and shared factors, by pointers and by descriptors."""

from __future__ import annotations

from itertools import product

import pytest
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 1, "num_warps": 2, "num_stages": 2}


def workload(a: bool, b: bool, shared: str = "none", dtype: str = "float16", **sizes: int):
    usual = {"batch": 2, "M": 21, "N": 43, "K": 71, **sizes}
    return Workload.of(transpose_a=a, transpose_b=b, shared=shared, dtype=dtype, **usual)


def test_every_order_of_factors_is_right():
    jobs = []
    for a, b, shared in product((False, True), (False, True), ("none", "a", "b")):
        jobs.append(("batched_matmul", workload(a, b, shared), TILE))
        aligned = workload(a, b, shared, "bfloat16", M=24, N=40, K=72)
        config = {**TILE, "loads": "descriptor", "persistent": shared == "none"}
        jobs.append(("batched_matmul", aligned, config))
    for a, b in product((False, True), repeat=2):
        even = workload(a, b, dtype="float32", M=32, N=32, K=64)
        config = {**TILE, "loads": "pointer", "precision": "ieee"}
        jobs.append(("batched_matmul", even, config))
    assert wrong(jobs) == []


@pytest.mark.parametrize("transposed", list(product((False, True), repeat=2)))
def test_default_and_descriptor_tiles_use_tensor_cores_and_do_not_spill(transposed):
    kernel = load("batched_matmul")
    large = workload(*transposed, dtype="bfloat16", batch=64, M=2048, N=2048, K=512)
    default = kernel.default_config(large, H200)
    bound = kernel.space(large).bind(large, H200)
    for persistent in (None, False, True):
        config = default
        if persistent is not None:
            config = {**default, "loads": "descriptor", "persistent": persistent}
        assert bound.why_not(config) is None
        assert "wgmma.mma_async" in assemble(kernel, large, config)


def test_small_products_are_read_in_words_of_16_bytes_by_few_warps():
    kernel = load("batched_matmul")
    dlrm = kernel.workloads()[5]
    config = kernel.default_config(dlrm, H200)
    assert (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) == (32, 32, 2)
    ptx = assemble(kernel, dlrm, config)
    assert "cp.async" in ptx or ".v4.b32" in ptx
    assert "mma.sync" in ptx


def test_descriptors_need_rows_of_whole_16_bytes():
    kernel = load("batched_matmul")
    # Rows of K elements are whole words where b is transposed, rows of N are not.
    for transposed in (False, True):
        odd = workload(False, transposed, M=64, N=100, K=64)
        assert "loads" not in {item.name for item in kernel.space(odd).parameters}
    even = workload(True, True, M=64, N=64, K=64)
    assert "loads" in {item.name for item in kernel.space(even).parameters}
    assert "loads" not in {item.name for item in kernel.space(even.with_dims(M=63)).parameters}


def test_bad_dims_are_refused():
    kernel = load("batched_matmul")
    with pytest.raises(WorkloadError, match="shared is 'c'"):
        kernel.check_workload(workload(False, False, "c"))
    with pytest.raises(WorkloadError, match="transpose_a is 1"):
        kernel.check_workload(workload(False, False).with_dims(transpose_a=1))
