"""The cross-entropy of rows of any length, and its gradient."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

CONFIGS = [
    {"BLOCK": 256, "num_warps": 2, "stages": 1, "stream": False},
    {"BLOCK": 1024, "num_warps": 4, "stages": 1, "stream": True},
    {"BLOCK": 256, "num_warps": 1, "stages": 3, "stream": False},
]


def test_rows_of_any_length_have_their_loss():
    jobs = [
        ("cross_entropy", Workload.of(rows=rows, cols=cols, dtype=dtype), config)
        for rows, cols, dtype in (
            (1, 1, "float32"),
            (5, 255, "bfloat16"),
            (3, 1025, "float16"),
            (2, 3000, "float32"),
        )
        for config in CONFIGS
    ]
    # A single class has the loss 0, of which no relative error exists.
    assert [found for found in wrong(jobs) if found[0][1].size("cols") > 1] == []


def test_baselines_agree_with_the_reference():
    kernel = load("cross_entropy")
    small = kernel.small_workload(kernel.workloads()[0])
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected = kernel.reference(small, inputs)["loss"]
    got = kernel.baselines(small)["eager"](inputs)["loss"]
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), expected, rtol=1e-5)
    by_hand = inputs["x"].double().logsumexp(1)
    by_hand -= inputs["x"].double().gather(1, inputs["target"][:, None])[:, 0]
    assert torch.allclose(expected, by_hand)


def test_logits_are_read_in_words_of_16_bytes_without_spills():
    kernel = load("cross_entropy")
    large = kernel.workloads()[0]
    ptx = assemble(kernel, large)
    assert "ex2.approx" in ptx
    assert "v4.b32" in ptx


BACKWARD = [
    {"BLOCK": 256, "num_warps": 2, "steps": 1, "stages": 1, "stream": False},
    {"BLOCK": 256, "num_warps": 1, "steps": 4, "stages": 3, "stream": True},
    {"BLOCK": 1024, "num_warps": 4, "steps": 2, "stages": 2, "stream": False},
]


def test_rows_of_any_length_have_their_gradient():
    jobs = [
        ("cross_entropy_backward", Workload.of(rows=rows, cols=cols, dtype=dtype), config)
        for rows, cols, dtype in (
            (1, 2, "float32"),
            (5, 255, "bfloat16"),
            (3, 1025, "float16"),
            (2, 3000, "float32"),
        )
        for config in BACKWARD
    ]
    assert wrong(jobs) == []


def test_the_gradient_is_that_of_autograd_and_of_the_baseline():
    kernel = load("cross_entropy_backward")
    for dtype in ("float32", "bfloat16"):
        small = Workload.of(rows=11, cols=301, dtype=dtype)
        inputs = kernel.make_inputs(small, 1, "cpu")
        x = inputs["x"].double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(x, inputs["target"], reduction="none")
        loss.backward(inputs["grad"].double())
        expected = kernel.reference(small, inputs)["out"]
        assert torch.allclose(expected, x.grad, atol=1e-5)
        before = inputs["x"].clone()
        got = kernel.baselines(small)["eager"](inputs)["out"]
        assert torch.equal(before, inputs["x"])
        assert got.dtype == inputs["x"].dtype
        relative = kernel.tolerance(small).relative
        assert float((got.double() - expected).norm() / expected.norm()) < relative


def test_gradients_are_written_in_words_of_16_bytes_without_spills():
    kernel = load("cross_entropy_backward")
    large = kernel.workloads()[0]
    for config in (kernel.default_config(large, H200), {**BACKWARD[1], "BLOCK": 1024}):
        ptx = assemble(kernel, large, config)
        stores = [line for line in ptx.splitlines() if "st.global" in line]
        assert stores
        assert all("v4.b32" in line for line in stores)
