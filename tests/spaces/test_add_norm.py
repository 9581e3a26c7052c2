"""The residual addition fused with a norm."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.add_norm.kernel import KINDS_OF_NORM
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"num_warps": 2, "rows_per_step": 1, "steps": 1, "stream": False}
CONFIGS = [USUAL, {**USUAL, "rows_per_step": 2, "steps": 3, "stages": 2, "stream": True}]


def workload(kind: str, rows: int, cols: int, dtype: str = "float32", **dims: object) -> Workload:
    usual = {"kind": kind, "rows": rows, "cols": cols, "to": "same", "dtype": dtype}
    return Workload.of(**{**usual, **dims})


@pytest.mark.parametrize("kind", KINDS_OF_NORM)
def test_rows_of_any_length_are_added_and_normalised(kind):
    sizes = [(1, 1, "float32"), (5, 2, "float16"), (7, 127, "bfloat16"), (6, 128, "bfloat16")]
    sizes += [(3, 129, "float32"), (5, 1000, "float16")]
    # A single column has no variance, so that without eps all would be rounding.
    jobs = [
        ("add_norm", workload(kind, *size, eps=0.01), config)
        for size in sizes
        for config in CONFIGS
    ]
    assert wrong(jobs) == []


@pytest.mark.parametrize("kind", KINDS_OF_NORM)
def test_the_reference_normalises_the_sum_as_it_is_stored(kind):
    kernel, small = load("add_norm"), workload(kind, 5, 31, "bfloat16", eps=0.1)
    inputs = kernel.make_inputs(small, 3, "cpu")
    found = kernel.reference(small, inputs)
    total = (inputs["x"] + inputs["residual"]).double()
    assert torch.equal(found["residual_out"], total)
    centred = total - total.mean(1, keepdim=True) if kind == "layer_norm" else total
    expected = centred / (centred.square().mean(1, keepdim=True) + 0.1).sqrt()
    expected = expected * inputs["weight"].double()
    if kind == "layer_norm":
        expected = expected + inputs["bias"].double()
    assert torch.allclose(found["out"], expected, rtol=1e-12)
    got = kernel.baselines(small)["eager"](inputs)
    assert got.keys() == found.keys() == kernel.outputs(small).keys()
    for name, tensor in got.items():
        assert torch.allclose(tensor.double(), found[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("to", ["float8_e4m3fn", "int8"])
def test_results_are_quantized_by_rows(to):
    ways = [{"convert": way} for way in ("hardware", "bits")] if to == "float8_e4m3fn" else [{}]
    jobs = [
        ("add_norm", workload(kind, 6, cols, "bfloat16", to=to), {**config, **way})
        for kind, cols in (("rms_norm", 128), ("layer_norm", 301))
        for config in CONFIGS
        for way in ways
    ]
    assert wrong(jobs) == []
    kernel, small = load("add_norm"), jobs[-1][1]
    inputs = kernel.make_inputs(small, 1, "cpu")
    found, got = kernel.reference(small, inputs), kernel.baselines(small)["eager"](inputs)
    largest = 448 if to == "float8_e4m3fn" else 127
    assert bool((found["out"].abs().amax(1) == largest).all())
    whole = kernel.reference(small.with_dims(to="same"), inputs)["out"]
    error = found["out"] * found["scale"][:, None] - whole
    assert float(error.norm() / whole.norm()) < (0.04 if to == "float8_e4m3fn" else 0.01)
    for name, spec in kernel.outputs(small).items():
        assert f"torch.{spec.dtype}" == f"{got[name].dtype}"
        off = (got[name].double() - found[name]).norm() / found[name].norm()
        assert float(off) <= kernel.tolerance(small).relative


def test_float8_codes_are_written_in_words_of_the_targets_own_conversion():
    kernel, large = load("add_norm"), load("add_norm").workloads()[6]
    assert large["to"] == "float8_e4m3fn"
    assert "cvt.rn.satfinite.e4m3x2" in assemble(kernel, large)


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "dtype"),
    [
        ("rms_norm", 8192, 4096, "bfloat16"),
        ("rms_norm", 8192, 2880, "bfloat16"),
        ("layer_norm", 12000, 1280, "float16"),
        ("rms_norm", 4096, 16384, "float32"),
    ],
)
def test_rows_are_read_in_words_of_16_bytes_without_spills(kind, rows, cols, dtype):
    kernel, large = load("add_norm"), workload(kind, rows, cols, dtype)
    ptx = assemble(kernel, large)
    assert ".v4.b32" in ptx
    assert "ld.global.b16" not in ptx


def test_a_variant_with_several_steps_loads_ahead():
    kernel, large = load("add_norm"), workload("rms_norm", 8192, 4096, "bfloat16")
    config = {"num_warps": 8, "rows_per_step": 1, "steps": 8, "stream": True, "stages": 2}
    assert "cp.async" in assemble(kernel, large, config)


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"cols": 16385}, "more than the 16384"),
        ({"kind": "rmsnorm"}, "did you mean 'rms_norm'"),
        ({"eps": 0}, "not a positive"),
    ],
)
def test_bad_workloads_are_refused(dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load("add_norm").check_workload(workload("rms_norm", 4, 8).with_dims(**dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"
