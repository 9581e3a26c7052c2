"""Softmax of rows of any length: held, read in blocks, split over programs, masked."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.online_softmax.kernel import MASKS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

HELD = {"passes": 1, "num_warps": 2, "rows_per_step": 2, "steps": 2, "stages": 2, "stream": True}
BLOCKS = {"passes": 2, "num_warps": 1, "BLOCK": 64, "block_stages": 2, "splits": 1, "stream": True}
CONFIGS = [HELD, BLOCKS, {**BLOCKS, "BLOCK": 32, "splits": 4, "stream": False}]


def workload(rows: int, cols: int, dtype: str = "float32", **dims: object) -> Workload:
    return Workload.of(**{"rows": rows, "cols": cols, "dtype": dtype, "log": False, **dims})


def test_rows_of_any_length_are_normalised_and_hidden_elements_are_zero():
    # Rows that begin at words of 16 bytes or not, with one block or with several.
    sizes = [(1, 2, "float32"), (2, 64, "bfloat16"), (5, 65, "float16"), (3, 300, "float32")]
    sizes += [(2, 515, "bfloat16"), (3, 520, "float16")]
    each = [workload(*size, log=log, mask="none") for size in sizes for log in (False, True)]
    for cols, dtype in ((5, "float32"), (32, "bfloat16"), (35, "float16"), (72, "float32")):
        each += [workload(cols, cols, dtype, mask=mask) for mask in MASKS[1:]]
    jobs = [("online_softmax", small, config) for small in each for config in CONFIGS]
    assert wrong(jobs) == []


@pytest.mark.parametrize("mask", ["causal", "boolean"])
def test_elements_are_hidden_as_the_mask_says(mask):
    kernel, small = load("online_softmax"), workload(8, 8, mask=mask)
    inputs = kernel.make_inputs(small, 1, "cpu")
    seen = inputs["mask"] if mask == "boolean" else torch.ones(8, 8).tril().bool()
    out = kernel.reference(small, inputs)["out"]
    assert torch.equal(out > 0, seen)


@pytest.mark.parametrize("mask", MASKS)
def test_baselines_agree_with_the_reference(mask):
    kernel = load("online_softmax")
    for log in (False, True)[: 2 if mask == "none" else 1]:
        small = workload(74, 37, mask=mask, log=log)
        inputs = kernel.make_inputs(small, 1, "cpu")
        expected = kernel.reference(small, inputs)["out"]
        baselines = kernel.baselines(small)
        got = baselines["eager"](inputs)["out"]
        assert got.dtype == torch.float32
        assert torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-7)
        assert ("vendor" in baselines) == (mask == "none")
        if mask == "none":
            with pytest.raises(RuntimeError, match="needs a CUDA tensor"):
                baselines["vendor"](inputs)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "dims"),
    [
        (4096, 128256, "bfloat16", {"log": True, "mask": "none"}),
        (2048, 50257, "float16", {"mask": "none"}),
        (8192, 4096, "bfloat16", {"mask": "causal"}),
        (65536, 512, "bfloat16", {"mask": "boolean"}),
    ],
)
def test_rows_are_read_in_words_of_16_bytes_without_spills(rows, cols, dtype, dims):
    """Also rows of 50,257 elements, of which most begin between two words."""
    kernel, large = load("online_softmax"), workload(rows, cols, dtype, **dims)
    config = kernel.default_config(large, H200)
    if cols % 8:
        # The default's threads have less than a word.
        config = {**config, "BLOCK": 4096, "num_warps": 8}
    ptx = assemble(kernel, large, config)
    lines = ptx.splitlines()
    for access in ("ld.global", "st.global"):
        assert any(access in line and ".v4.b32" in line for line in lines)


def test_split_rows_are_normalised_by_a_second_launch():
    kernel, few = load("online_softmax"), workload(1, 128256, "float32", mask="none")
    config = {**BLOCKS, "num_warps": 4, "BLOCK": 1024, "splits": 64, "block_stages": 1}
    assert kernel.space(few).bind(few, H200).feasible(config)
    first, second = kernel.launches(few, config, meta_tensors(kernel, few, config))
    assert first.grid == second.grid == (1, 64)
    for launch in (first, second):
        assert spilled_bytes(build(launch, H200)) == 0
    many = few.with_dims(rows=8192)
    bound = kernel.space(many).bind(many, H200)
    assert {point.get("splits", 1) for point in bound.enumerate()} == {1}


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"log": True, "mask": "causal"}, "minus infinity"),
        ({"mask": "causal", "rows": 9}, "not those of square matrices"),
        ({"mask": "causl"}, "did you mean"),
        ({"log": "yes"}, "not true or false"),
        ({"cols": 2**30 + 1}, "more than the 1073741824"),
    ],
)
def test_impossible_workloads_are_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("online_softmax").check_workload(workload(8, 8, mask="none").with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"


def test_softmax_names_the_kernel_for_longer_rows():
    with pytest.raises(WorkloadError) as caught:
        load("softmax").check_workload(Workload.of(rows=100, cols=50257, dtype="float32"))
    assert "more than the 32768" in caught.value.message
    assert "online_softmax" in caught.value.hint
