"""Cumulative sums of rows, whole and split."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"BLOCK_R": 2, "BLOCK_C": 64, "splits": 1, "num_warps": 1, "stages": 1, "stream": False}


def workload(rows: int, cols: int, dtype: str = "float32") -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype)


def test_rows_of_any_length_are_summed_whole_and_split():
    jobs = []
    for rows, cols, dtype in (
        (1, 1, "float32"),
        (3, 63, "bfloat16"),
        (2, 128, "float32"),
        (5, 301, "float16"),
        (1, 1000, "float32"),
    ):
        small = workload(rows, cols, dtype)
        jobs.append(("cumulative_sum", small, USUAL))
        jobs.append(("cumulative_sum", small, {**USUAL, "stages": 3, "stream": True}))
        for splits in (2, 4, 16):
            split = {**USUAL, "splits": splits, "backwards": splits == 4, "panels": 1}
            jobs.append(("cumulative_sum", small, split))
            panels = {**split, "backwards": splits == 16, "panels": splits // 2}
            jobs.append(("cumulative_sum", small, panels))
    assert wrong(jobs) == []


def test_baselines_agree_with_the_reference():
    kernel = load("cumulative_sum")
    for dtype in ("float32", "bfloat16"):
        small = workload(7, 3001, dtype)
        inputs = kernel.make_inputs(small, 1, "cpu")
        expected = kernel.reference(small, inputs)["out"]
        got = kernel.baselines(small)["eager"](inputs)["out"]
        assert str(got.dtype) == f"torch.{dtype}"
        off = (got.double() - expected).abs()
        assert bool((off <= kernel.tolerance(small).elementwise * (1 + expected.abs())).all())
        assert torch.allclose(expected[:, -1], inputs["x"].double().sum(1))


def test_rows_are_moved_in_words_of_16_bytes_without_spills():
    kernel = load("cumulative_sum")
    for place in (0, 2, 3):
        large = kernel.workloads()[place]
        config = kernel.default_config(large, H200)
        for launch in kernel.launches(large, config, meta_tensors(kernel, large, config)):
            built = build(launch, H200)
            assert spilled_bytes(built) == 0
            assert "ld.global.v4.b32" in built.asm["ptx"]
        assert "st.global.v4.b32" in built.asm["ptx"]


def test_few_long_rows_are_split_by_default():
    kernel = load("cumulative_sum")
    for large in kernel.workloads():
        config = kernel.default_config(large, H200)
        rows, cols = large.size("rows"), large.size("cols")
        if rows * cols > 2**20:
            assert rows * config["splits"] >= 132, large.key
        assert config["splits"] == 1 or rows < 2 * 132
