"""The backward pass of layer norm and RMS norm: rows held in registers, and two passes in tiles."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.kernels.norm_backward.kernel import KINDS_OF_NORM
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

HELD = {"passes": 1, "num_warps": 2, "programs": 4, "stages": 2, "rows_per_step": 2}
TILES = {"passes": 2, "num_warps": 2, "programs": 2, "stages": 1, "BLOCK_R": 4, "BLOCK_C": 64}
CONFIGS = [HELD, {**HELD, "rows_per_step": 1, "programs": 16}, TILES, {**TILES, "programs": 8}]


def workload(kind: str, rows: int, cols: int, dtype: str = "float32") -> Workload:
    return Workload.of(kind=kind, rows=rows, cols=cols, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS_OF_NORM)
def test_gradients_of_any_number_of_rows_and_columns(kind):
    sizes = [(1, 5, "float32"), (5, 7, "float16"), (16, 64, "bfloat16"), (9, 130, "float32")]
    sizes += [(19, 256, "bfloat16")]
    jobs = [
        ("norm_backward", workload(kind, *size), config) for size in sizes for config in CONFIGS
    ]
    assert wrong(jobs) == []


@pytest.mark.parametrize("kind", KINDS_OF_NORM)
def test_reference_and_baselines_agree_with_autograd(kind):
    kernel, small = load("norm_backward"), workload(kind, 11, 37)
    inputs = dict(kernel.make_inputs(small, 1, "cpu"))
    x, weight = (inputs[name].double().requires_grad_() for name in ("x", "weight"))
    bias = torch.zeros(37, dtype=torch.float64, requires_grad=True)
    if kind == "layer_norm":
        out = torch.nn.functional.layer_norm(x, [37], weight, bias, 1e-5)
    else:
        out = torch.nn.functional.rms_norm(x, [37], weight, 1e-5)
    out.backward(inputs["dy"].double())
    found = kernel.reference(small, inputs)
    expected = {"dx": x.grad, "dweight": weight.grad, "dbias": bias.grad}
    assert found.keys() == kernel.outputs(small).keys()
    got = kernel.baselines(small)["eager"](inputs)
    for name, tensor in found.items():
        # The saved statistics are float32.
        assert torch.allclose(tensor, expected[name], rtol=1e-4, atol=1e-5), name
        assert torch.allclose(got[name].double(), tensor, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 7])
def test_the_default_reads_words_of_16_bytes_without_spills(at):
    kernel = load("norm_backward")
    large = kernel.workloads()[at]
    config = kernel.default_config(large, H200)
    launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
    assert len(launches) == 1 + config["passes"]
    for launch in launches:
        built = build(launch, H200)
        assert spilled_bytes(built) == 0
        if launch is not launches[-1]:
            assert ".v4.b32" in built.asm["ptx"] or "cp.async" in built.asm["ptx"]
            assert "ld.global.b16" not in built.asm["ptx"]


def test_every_program_writes_its_sums():
    """More programs than rows leave zeros, not what the memory held."""
    jobs = [("norm_backward", workload("layer_norm", 3, 40), config) for config in CONFIGS]
    assert wrong(jobs) == []


def test_rows_too_long_for_registers_are_read_twice():
    kernel = load("norm_backward")
    for cols, passes in ((1024, {1, 2}), (8192, {1, 2}), (8193, {2})):
        each = workload("rms_norm", 4096, cols, "bfloat16")
        points = kernel.space(each).bind(each, H200).enumerate()
        assert {point["passes"] for point in points} == passes
