"""Few rows times a weight matrix, lane by lane and by tensor cores."""

from __future__ import annotations

import pytest
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.gemv.space import uses_dot
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

ADDED = {"BLOCK_N": 4, "BLOCK_K": 128, "num_warps": 2, "num_stages": 1, "SPLIT_K": 1}
DOT = {"BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 2, "num_stages": 2, "SPLIT_K": 1}


def workload(m: int, dtype: str = "bfloat16", n: int = 37, k: int = 403) -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype=dtype)


def test_every_number_of_rows_is_right_whole_and_split():
    jobs = []
    for m in (1, 2, 3, 4):
        for config in (ADDED, {**ADDED, "SPLIT_K": 2}, {**ADDED, "num_stages": 2}):
            jobs.append(("gemv", workload(m, "float32"), config))
            jobs.append(("gemv", workload(m), {"product": "multiply_add", **config}))
        jobs.append(("gemv", workload(m, "float16"), {"product": "dot", **DOT}))
    for m in (5, 11, 16):
        jobs += [("gemv", workload(m), {**DOT, "SPLIT_K": splits}) for splits in (1, 4)]
    jobs.append(("gemv", workload(7, "float32"), DOT))
    # Sizes that fill all blocks have no masks.
    even = workload(2, "float16", n=64, k=512)
    jobs += [("gemv", even, {"product": "multiply_add", **ADDED})]
    jobs += [("gemv", even, {"product": "dot", **DOT})]
    assert wrong(jobs) == []


def test_above_four_rows_all_configs_use_tensor_cores():
    kernel = load("gemv")
    for m, kinds in ((1, {True, False}), (4, {True, False}), (5, {True}), (16, {True})):
        large = workload(m, n=8192, k=8192)
        points = kernel.space(large).bind(large, H200).enumerate()
        assert {uses_dot(point, large) for point in points} == kinds
    single = workload(4, "float32", n=8192, k=8192)
    points = kernel.space(single).bind(single, H200).enumerate()
    assert not any(uses_dot(point, single) for point in points)


def test_weights_are_read_in_words_of_16_bytes_without_spills():
    kernel = load("gemv")
    for large in (*kernel.workloads()[:2], workload(4, n=10240, k=8192)):
        config = kernel.default_config(large, H200)
        assert config["product"] == "multiply_add"
        ptx = assemble(kernel, large, config)
        assert ".v4.b32" in ptx
        assert "ld.global.b16" not in ptx
        assert "mma" not in ptx


def test_weights_in_flight_go_through_shared_memory():
    kernel, large = load("gemv"), workload(1, n=4096, k=14336)
    config = {**kernel.default_config(large, H200), "num_stages": 3}
    assert "cp.async" in assemble(kernel, large, config)


@pytest.mark.parametrize(("rows", "instruction"), [(32, "mma.sync"), (64, "wgmma.mma_async")])
def test_tiles_of_weights_are_the_first_factor_of_tensor_cores(rows, instruction):
    kernel, large = load("gemv"), workload(16, n=8192, k=8192)
    config = {"BLOCK_N": rows, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4, "SPLIT_K": 1}
    assert instruction in assemble(kernel, large, config)


def test_more_than_16_rows_are_refused():
    with pytest.raises(WorkloadError, match="more than the 16"):
        load("gemv").check_workload(workload(17))
