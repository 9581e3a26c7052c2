"""Reductions along rows and columns, whole and split."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble, build, meta_tensors, spilled_bytes
from spaces_interpret import interpret, wrong

from search_spaces.kernels.reduction.kernel import OPERATIONS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

ROWS = {"BLOCK_KEEP": 2, "BLOCK_RED": 64, "splits": 1, "num_warps": 2, "stages": 1}
COLUMNS = {"BLOCK_KEEP": 32, "BLOCK_RED": 4, "splits": 1, "num_warps": 2, "stages": 1}


def workload(axis: int, operation: str, rows: int, cols: int, dtype: str = "float32") -> Workload:
    return Workload.of(rows=rows, cols=cols, axis=axis, operation=operation, dtype=dtype)


def test_every_reduction_is_right_whole_and_split():
    jobs = []
    for operation in OPERATIONS:
        for rows, cols, dtype in ((5, 301, "float32"), (3, 130, "bfloat16"), (1, 7, "float16")):
            small = workload(1, operation, rows, cols, dtype)
            jobs += [("reduction", small, {**ROWS, "splits": splits}) for splits in (1, 2, 8)]
            small = workload(0, operation, cols, rows, dtype)
            jobs += [("reduction", small, {**COLUMNS, "splits": splits}) for splits in (1, 4)]
    assert wrong(jobs) == []


def test_argmax_gives_the_first_of_equal_values():
    # In bfloat16, some rows have their largest value more than once.
    kernel, long = load("reduction"), workload(1, "argmax", 24, 1536, "bfloat16")
    x = kernel.make_inputs(long, 1, "cpu")["x"]
    assert int(((x == x.amax(1, keepdim=True)).sum(1) > 1).sum()) >= 2
    assert torch.equal(kernel.reference(long, {"x": x})["out"], x.double().argmax(1))
    configs = [{**ROWS, "BLOCK_RED": 256, "splits": splits} for splits in (1, 4)]
    assert all(got["passed"] for got in interpret([("reduction", long, one) for one in configs]))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_baselines_agree_with_the_reference(operation):
    kernel = load("reduction")
    for axis in (0, 1):
        small = workload(axis, operation, 37, 41)
        inputs = kernel.make_inputs(small, 1, "cpu")
        got = kernel.baselines(small)["eager"](inputs)["out"]
        (spec,) = kernel.outputs(small).values()
        assert (tuple(got.shape), f"{got.dtype}") == (spec.shape, f"torch.{spec.dtype}")
        assert torch.allclose(got.double(), kernel.reference(small, inputs)["out"].double())


@pytest.mark.parametrize("axis", [0, 1])
def test_matrices_are_read_in_words_of_16_bytes_without_spills(axis):
    kernel, large = load("reduction"), workload(axis, "sum", 8192, 4096, "bfloat16")
    for config in (kernel.default_config(large, H200), {**ROWS, "BLOCK_RED": 2048}):
        if axis == 0:
            config = {**COLUMNS, "BLOCK_KEEP": 256, "BLOCK_RED": 16, "stages": 3}
        (launch,) = kernel.launches(large, config, meta_tensors(kernel, large, config))
        built = build(launch, H200)
        assert spilled_bytes(built) == 0
        assert ".v4.b32" in built.asm["ptx"] or "cp.async" in built.asm["ptx"]


def test_extrema_of_nan_are_nan():
    kernel, large = load("reduction"), workload(1, "min", 64, 4096)
    assert "min.NaN.f32" in assemble(kernel, large)


def test_the_default_gives_every_multiprocessor_several_programs():
    kernel = load("reduction")
    for large in kernel.workloads():
        config = kernel.default_config(large, H200)
        launch, *combine = kernel.launches(large, config, meta_tensors(kernel, large, config))
        programs = launch.grid[0] * launch.grid[1]
        assert programs >= 4 * H200.sm_count, large.key
        # The partial results of an output are read at once, not one after the other.
        for other in combine:
            assert other.kwargs["BLOCK"] * config["splits"] >= 512


def test_an_axis_is_split_only_where_there_are_few_results():
    kernel = load("reduction")
    many = workload(1, "sum", 8192, 4096)
    few = workload(1, "sum", 16, 1048576)
    splits = [
        max(config["splits"] for config in kernel.space(each).bind(each, H200).enumerate())
        for each in (many, few)
    ]
    assert splits[0] <= 16 < splits[1]
