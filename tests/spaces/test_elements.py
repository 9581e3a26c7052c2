"""Families of independent elements: activations and element-wise operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from spaces_devices import H200, assemble, build, meta_tensors
from spaces_interpret import wrong

from search_spaces.kernels.activation.kernel import GATED, PLAIN
from search_spaces.kernels.elementwise.kernel import OPERATIONS
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"BLOCK": 256, "num_warps": 4, "steps": 1, "stream": False}
#: Loops, hints, and blocks beyond the end of the tensor or of a row.
CONFIGS = [
    USUAL,
    {**USUAL, "steps": 4, "stream": True},
    {**USUAL, "BLOCK": 128, "num_warps": 1, "steps": 2},
    {**USUAL, "BLOCK": 4096},
]
WORKLOADS = [
    *(("activation", {"function": name}) for name in (*PLAIN, *GATED)),
    *(("activation_backward", {"function": name}) for name in (*PLAIN, *GATED)),
    *(("elementwise", {"operation": name}) for name in OPERATIONS),
]


def workload(dims: dict[str, str], **sizes: object) -> Workload:
    return Workload.of(**{"rows": 7, "cols": 301, "dtype": "float32", **dims, **sizes})


def test_every_operation_is_right_whatever_the_size():
    jobs = []
    odd = ((1, 1, "float32"), (3, 256, "float16"), (2, 130, "bfloat16"))
    for name, dims in WORKLOADS:
        jobs += [(name, workload(dims), config) for config in CONFIGS]
        jobs += [
            (name, workload(dims, rows=rows, cols=cols, dtype=dtype), USUAL)
            for rows, cols, dtype in odd
        ]
    assert wrong(jobs) == []


@pytest.mark.parametrize(("name", "dims"), WORKLOADS)
def test_baselines_agree_with_the_reference(name, dims):
    kernel, small = load(name), workload(dims)
    inputs = kernel.make_inputs(small, 1, "cpu")
    (output,) = kernel.outputs(small)
    expected = kernel.reference(small, inputs)[output]
    baselines = kernel.baselines(small)
    spellings = {"clamp", "clamp_", "torchscript_clamp"}
    assert set(baselines) & spellings == (
        spellings if (name, *dims.values()) == ("activation", "relu1") else set()
    )
    for each in set(baselines) - {"compile"}:
        got = baselines[each](inputs)[output]
        assert str(got.dtype) == f"torch.{kernel.outputs(small)[output].dtype}"
        close = kernel.tolerance(small).elementwise * (1 + expected.abs())
        assert bool(((got.double() - expected).abs() <= close).all()), each


@pytest.mark.parametrize("name", ["relu", "relu1"])
def test_nan_stays_nan_in_clamped_activations(name):
    kernel, large = load("activation"), workload({"function": name}, rows=64, cols=4096)
    text = assemble(kernel, large, USUAL)
    assert "max.NaN.f32" in text
    assert ("min.NaN.f32" in text) == (name == "relu1")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("name", "dims"), [WORKLOADS[0], WORKLOADS[len(PLAIN)], WORKLOADS[-5]])
def test_elements_are_read_in_words_of_16_bytes(name, dims, dtype):
    kernel = load(name)
    for cols in (4096, 4099) if dims != WORKLOADS[len(PLAIN)][1] else (4096,):
        odd = workload(dims, rows=8191, cols=cols, dtype=dtype)
        config = {**USUAL, "BLOCK": 2048}
        ptx = assemble(kernel, odd, config)
        assert "ld.global.v4.b32" in ptx
        assert "st.global.v4.b32" in ptx


def test_sizes_share_a_binary_where_nothing_depends_on_them():
    kernel = load("elementwise")
    texts = set()
    for rows, cols in ((8192, 4096), (16384, 1024)):
        whole = workload({"operation": "add"}, rows=rows, cols=cols)
        (launch,) = kernel.launches(whole, USUAL, meta_tensors(kernel, whole, USUAL))
        texts.add(build(launch, H200).asm["ptx"])
    assert len(texts) == 1


IN_PLACE = """
import sys
import torch
from search_spaces.records import Workload
from search_spaces.registry import load

kernel = load("activation")
config = {"BLOCK": 128, "num_warps": 1, "steps": 2, "stream": False}
for name in sys.argv[1:]:
    workload = Workload.of(rows=5, cols=333, dtype="float32", function=name)
    x = kernel.make_inputs(workload, 1, "cpu")["x"]
    expected = kernel.reference(workload, {"x": x})["out"]
    for launch in kernel.launches(workload, config, {"x": x, "out": x}):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
    assert torch.allclose(x.double(), expected, atol=1e-5), name
"""


def test_activations_of_one_element_may_be_in_place():
    subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_PLACE, *PLAIN],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{Path(__file__).parents[2]}"},
        check=True,
    )


def test_relu1_is_relu_clamped_to_one():
    kernel, small = load("activation"), workload({"function": "relu1"})
    inputs = kernel.make_inputs(small, 1, "cpu")
    out = kernel.reference(small, inputs)["out"]
    assert torch.equal(out, inputs["x"].double().clamp(0, 1))
    assert 0.2 < float((out == 1).double().mean()) < 0.45
