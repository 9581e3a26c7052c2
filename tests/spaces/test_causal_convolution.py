"""The causal convolution of sequences in both memory layouts."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.causal_convolution.kernel import LAYOUTS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

CONFIGS = {
    "blc": [
        {"BLOCK_T": block_t, "BLOCK_C": 16, "steps": steps, "num_warps": 1}
        for block_t, steps in ((16, 1), (32, 4), (64, 8))
    ],
    "bcl": [
        {"BLOCK_T": block_t, "BLOCK_C": block_c, "num_warps": 1}
        for block_t, block_c in ((32, 8), (64, 4), (256, 16))
    ],
}


def workload(layout: str, **dims: object) -> Workload:
    usual = {"batch": 2, "length": 77, "channels": 19, "width": 4, "bias": True, "silu": True}
    return Workload.of(**{**usual, "layout": layout, "dtype": "float32", **dims})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequences_of_any_length_are_convolved(layout):
    cases = []
    for dims in (
        {},
        {"width": 2, "bias": False},
        {"width": 3, "silu": False, "dtype": "float16"},
        {"length": 1, "dtype": "bfloat16"},
        {"length": 64, "channels": 32, "dtype": "bfloat16"},
    ):
        small = workload(layout, **dims)
        cases += [("causal_convolution", small, config) for config in CONFIGS[layout]]
    assert wrong(cases) == []


def test_no_step_sees_a_later_one():
    kernel, small = load("causal_convolution"), workload("blc")
    inputs = dict(kernel.make_inputs(small, 1, "cpu"))
    before = kernel.reference(small, inputs)["out"]
    inputs["x"] = inputs["x"].clone()
    inputs["x"][:, 40:] += 1
    after = kernel.reference(small, inputs)["out"]
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.isclose(before[:, 40:44], after[:, 40:44]).any()


def test_both_layouts_and_all_baselines_agree():
    kernel, last = load("causal_convolution"), workload("blc")
    inputs = dict(kernel.make_inputs(last, 1, "cpu"))
    expected = kernel.reference(last, inputs)["out"]
    got = kernel.baselines(last)["eager"](inputs)["out"]
    assert torch.allclose(got.double(), expected, atol=1e-5)
    first = last.with_dims(layout="bcl")
    inputs["x"] = inputs["x"].transpose(1, 2).contiguous()
    assert torch.allclose(kernel.reference(first, inputs)["out"].transpose(1, 2), expected)


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [({"width": 5}, "use 2, 3, 4"), ({"batch": 65535, "length": 2**24}, "smaller batch")],
)
def test_impossible_sequences_are_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("causal_convolution").check_workload(workload("bcl").with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequences_are_moved_in_words_of_16_bytes_without_spills(layout):
    kernel = load("causal_convolution")
    large = workload(layout, length=4096, channels=5120, dtype="bfloat16")
    text = assemble(kernel, large)
    assert "ld.global.v4.b32" in text
    assert "st.global.v4.b32" in text
    if layout == "bcl":
        # A lane holds whole words, so that no value changes its lane.
        assert "st.shared" not in text
