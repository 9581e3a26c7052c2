"""The backward pass of softmax and log-softmax: held, read in blocks, split over programs."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

HELD = {"passes": 1, "num_warps": 2, "rows_per_step": 2, "steps": 2, "stages": 2, "stream": True}
BLOCKS = {"passes": 2, "num_warps": 1, "BLOCK": 64, "block_stages": 2, "splits": 1, "stream": True}
CONFIGS = [HELD, BLOCKS, {**BLOCKS, "BLOCK": 32, "splits": 4, "stream": False}]


def workload(rows: int, cols: int, dtype: str = "float32", *, log: bool = False) -> Workload:
    return Workload.of(rows=rows, cols=cols, dtype=dtype, log=log)


def test_rows_of_any_length_have_their_gradient():
    # Rows that begin at words of 16 bytes or not, with one block or with several.
    sizes = [(1, 3, "float32"), (2, 64, "bfloat16"), (5, 65, "float16"), (3, 300, "float32")]
    sizes += [(2, 515, "bfloat16"), (3, 520, "float16"), (9, 1001, "bfloat16")]
    each = [workload(*size, log=log) for size in sizes for log in (False, True)]
    jobs = [("softmax_backward", small, config) for small in each for config in CONFIGS]
    assert wrong(jobs) == []


@pytest.mark.parametrize("log", [False, True])
def test_reference_and_baselines_agree_with_autograd(log):
    kernel, small = load("softmax_backward"), workload(7, 37, log=log)
    x = torch.randn(7, 37, dtype=torch.float64, requires_grad=True)
    y = x.log_softmax(1) if log else x.softmax(1)
    dy = torch.randn(7, 37, dtype=torch.float64)
    y.backward(dy)
    inputs = {"y": y.detach(), "dy": dy}
    assert torch.allclose(kernel.reference(small, inputs)["dx"], x.grad)
    baselines, drawn = kernel.baselines(small), kernel.make_inputs(small, 1, "cpu")
    got = baselines["eager"](drawn)["dx"].double()
    assert torch.allclose(got, kernel.reference(small, drawn)["dx"], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="needs a CUDA tensor"):
        baselines["vendor"](drawn)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "log"),
    [
        (4096, 128256, "bfloat16", True),
        (8192, 50257, "float16", True),
        (8192, 8192, "bfloat16", False),
    ],
)
def test_rows_are_read_in_words_of_16_bytes_without_spills(rows, cols, dtype, log):
    kernel, large = load("softmax_backward"), workload(rows, cols, dtype, log=log)
    config = kernel.default_config(large, H200)
    if cols % 8:
        # The default's threads have less than a word.
        config = {**config, "BLOCK": 4096, "num_warps": 8}
    ptx = assemble(kernel, large, config)
    lines = ptx.splitlines()
    for access in ("ld.global", "st.global"):
        assert any(access in line and ".v4.b32" in line for line in lines)


def test_rows_too_long_for_registers_are_read_twice():
    kernel = load("softmax_backward")
    for cols, passes in ((700, {1}), (16384, {1, 2}), (16385, {2})):
        each = workload(64, cols, "bfloat16")
        points = kernel.space(each).bind(each, H200).enumerate()
        assert {point["passes"] for point in points} == passes


def test_the_inputs_keep_gradients_of_long_rows_away_from_zero():
    kernel = load("softmax_backward")
    for cols in (64, 50257):
        long = workload(2, cols, "float16")
        dx = kernel.reference(long, kernel.make_inputs(long, 1, "cpu"))["dx"]
        assert 0.05 < float(dx.square().mean().sqrt()) < 20
