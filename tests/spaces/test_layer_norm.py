"""LayerNorm and RMSNorm: right for every row, held or streamed, and wide words on the device."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces_devices import H200, MI300X, assemble, build, meta_tensors
from spaces_interpret import ROOT, interpret

from search_spaces.errors import WorkloadError
from search_spaces.records import Workload
from search_spaces.registry import load, spec_of

pytestmark = pytest.mark.family

NAMES = ["layer_norm", "rms_norm"]
HELD = {"passes": 1, "num_warps": 4, "rows_per_step": 2, "steps": 4, "stages": 2, "stream": True}
STREAMED = {"passes": 2, "num_warps": 2, "BLOCK": 128, "block_stages": 2, "stream": True}


@pytest.mark.parametrize("name", NAMES)
def test_the_family_keeps_its_promises(name):
    kernel = load(name)
    assert spec_of(type(kernel)()) == name
    workloads = kernel.workloads()
    assert len({workload.key for workload in workloads}) == len(workloads) >= 6
    for workload in workloads:
        small = kernel.small_workload(workload)
        for one in (workload, small):
            kernel.check_workload(one)
        assert small.size("cols") % 2 == small.size("rows") % 2 == 1
        assert kernel.cost(workload).bytes > 2 * kernel.cost(small).bytes
        assert set(kernel.baselines(workload)) >= {"eager", "compile"}
        for device in (H200, MI300X):
            bound = kernel.space(workload).bind(workload, device)
            assert bound.why_not(kernel.default_config(workload, device)) is None
            assert bound.size() <= 500
        assert kernel.space(workload).bind(workload, H200).size() >= 100


@pytest.mark.parametrize("name", NAMES)
def test_inputs_come_from_the_seed_and_are_not_around_zero(name):
    kernel = load(name)
    workload = kernel.small_workload(kernel.workloads()[0])
    one, same, other = (kernel.make_inputs(workload, seed, "cpu") for seed in (1, 1, 2))
    assert set(one) == {"x", "weight"} | ({"bias"} if name == "layer_norm" else set())
    for key, tensor in one.items():
        assert torch.equal(tensor, same[key])
        assert not torch.equal(tensor, other[key])
    assert abs(float(one["x"].float().mean()) - 1) < 0.2
    meta = kernel.make_inputs(workload, 1, "meta")
    assert {k: (t.shape, t.dtype) for k, t in meta.items()} == {
        k: (t.shape, t.dtype) for k, t in one.items()
    }


def test_the_reference_is_the_definition_in_float64():
    workload = Workload.of(rows=5, cols=31, dtype="float16", eps=0.1)
    layer, rms = load("layer_norm"), load("rms_norm")
    inputs = layer.make_inputs(workload, 3, "cpu")
    x, weight, bias = (inputs[name].double() for name in ("x", "weight", "bias"))
    centred = x - x.mean(1, keepdim=True)
    expected = centred / (centred.square().mean(1, keepdim=True) + 0.1).sqrt() * weight + bias
    found = layer.reference(workload, inputs)["out"]
    assert found.dtype == torch.float64
    assert torch.allclose(found, expected, rtol=1e-12)
    expected = x / (x.square().mean(1, keepdim=True) + 0.1).sqrt() * weight
    without_bias = {name: inputs[name] for name in ("x", "weight")}
    assert torch.allclose(rms.reference(workload, without_bias)["out"], expected, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_variants_compute_the_reference(name):
    kernel, rng, jobs = load(name), random.Random(7), []
    for workload in kernel.workloads():
        small = kernel.small_workload(workload)
        bound = kernel.space(workload).bind(workload, H200)
        configs = [kernel.default_config(workload, H200), *bound.sample(rng, 3)]
        jobs += [(name, small, config) for config in configs]
    outcomes = interpret(jobs)
    wrong = [(job, got) for job, got in zip(jobs, outcomes, strict=True) if not got["passed"]]
    assert not wrong, wrong


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_columns_and_rows_held_and_streamed(name):
    jobs = []
    for rows, cols in ((1, 1), (5, 2), (7, 127), (5, 128), (3, 129), (9, 640), (2, 1000)):
        # A single column has no variance, so that without eps all would be rounding.
        workload = Workload.of(rows=rows, cols=cols, dtype="float32", eps=0.01)
        jobs += [(name, workload, config) for config in (HELD, STREAMED)]
    outcomes = interpret(jobs)
    wrong = [(job, got) for job, got in zip(jobs, outcomes, strict=True) if not got["passed"]]
    assert not wrong, wrong


def test_streamed_sums_do_not_cancel():
    """Rows far from zero, where the mean of squares less the square of the mean loses all."""
    code = """
import torch
from search_spaces.kernels.normalization.kernel import LayerNorm
from search_spaces.records import Workload
kernel, workload = LayerNorm(), Workload.of(rows=3, cols=700, dtype="float32")
inputs = kernel.make_inputs(workload, 1, "cpu")
inputs["x"] += 3e4
out = torch.full((3, 700), float("nan"))
config = {"passes": 2, "num_warps": 1, "BLOCK": 128, "block_stages": 1, "stream": False}
for config in (config, {**config, "passes": 1, "rows_per_step": 1, "steps": 1}):
    (launch,) = kernel.launches(workload, config, {**inputs, "out": out})
    launch.fn[launch.grid](*launch.args, **launch.kwargs)
    exact = kernel.reference(workload, inputs)["out"]
    print(float((out.double() - exact).norm() / exact.norm()))
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == 2
    assert max(errors) < 5e-3


@pytest.mark.parametrize("at", [0, 2])
def test_the_default_reads_and_writes_whole_words(at):
    kernel = load("layer_norm")
    workload = kernel.workloads()[at]
    ptx = assemble(kernel, workload)
    assert ".v4.b32" in ptx
    assert "ld.global.b16" not in ptx
    assert "rsqrt.approx" in ptx


@pytest.mark.parametrize("config", [HELD, {**STREAMED, "BLOCK": 1024}])
def test_pipelined_variants_load_ahead(config):
    kernel = load("layer_norm")
    workload = kernel.workloads()[0]
    assert "cp.async" in assemble(kernel, workload, config)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("passes", [1, 2])
def test_it_compiles_for_amd(name, passes):
    kernel = load(name)
    workload = kernel.workloads()[0]
    bound = kernel.space(workload).bind(workload, MI300X).restrict({"passes": [passes]})
    config = bound.sample(random.Random(1), 1)[0]
    for launch in kernel.launches(workload, config, meta_tensors(kernel, workload, config)):
        assert "hsaco" in build(launch, MI300X).asm


def test_long_rows_are_streamed_and_short_ones_are_not():
    kernel = load("layer_norm")
    long = Workload.of(rows=64, cols=32769, dtype="bfloat16")
    short = Workload.of(rows=64, cols=700, dtype="bfloat16")
    assert {point["passes"] for point in kernel.space(long).bind(long, H200).enumerate()} == {2}
    assert {point["passes"] for point in kernel.space(short).bind(short, H200).enumerate()} == {1}


@pytest.mark.parametrize("name", NAMES)
def test_the_sources_do_not_depend_on_the_interpreter(name):
    code = f"from search_spaces.registry import load; print(load({name!r}).launch_hash())"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == load(name).launch_hash()


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"rows": 4, "cols": 4}, "dtype is missing"),
        ({"rows": 4, "cols": 2**20 + 1, "dtype": "float32"}, "more than the 1048576"),
        ({"rows": 0, "cols": 4, "dtype": "float32"}, "rows is 0"),
        ({"rows": 4, "cols": 4, "dtype": "float64"}, "not supported"),
        ({"rows": 4, "cols": 4, "dtype": "float32", "eps": 0}, "not a positive"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_bad_workloads_are_refused(name, dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load(name).check_workload(Workload.from_mapping(dims))
    assert complaint in f"{caught.value.message} {caught.value.hint}"
    assert name in caught.value.message


@settings(max_examples=40)
@given(st.integers(1, 9000), st.integers(1, 2**20), st.sampled_from(NAMES))
def test_every_problem_has_a_feasible_default(rows, cols, name):
    kernel, workload = load(name), Workload.of(rows=rows, cols=cols, dtype="float16")
    for device in (H200, MI300X):
        bound = kernel.space(workload).bind(workload, device)
        assert bound.why_not(kernel.default_config(workload, device)) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_rounded_to_the_output_dtype_is_admissible(name):
    kernel = load(name)
    for workload in kernel.workloads():
        workload = workload.with_dims(rows=16)
        tolerance = kernel.tolerance(workload)
        exact = kernel.reference(workload, kernel.make_inputs(workload, 1, "cpu"))["out"]
        off = (exact.to(getattr(torch, workload.text("dtype"))).double() - exact).abs()
        assert off.norm() <= tolerance.relative * exact.norm(), workload.key
        assert bool((off <= tolerance.elementwise * (1 + exact.abs())).all()), workload.key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["mean", "weight", "eps", "column"])
def test_faults_are_outside_the_tolerance(name, fault):
    """What a wrong variant would give: the mean or a weight forgotten, a column read twice."""
    kernel = load(name)
    workload = Workload.of(rows=17, cols=509, dtype="bfloat16")
    inputs = kernel.make_inputs(workload, 1, "cpu")
    exact = kernel.reference(workload, inputs)["out"]
    wrong = {key: tensor.clone() for key, tensor in inputs.items()}
    if fault == "mean":
        wrong["x"] -= 0.5 if name == "rms_norm" else torch.arange(509).bfloat16() / 512
    elif fault == "weight":
        wrong["weight"].fill_(1)
    elif fault == "eps":
        workload = workload.with_dims(eps=0.5)
    else:
        wrong["x"][:, 508] = wrong["x"][:, 507]
    got, tolerance = kernel.reference(workload, wrong)["out"], kernel.tolerance(workload)
    too_far = (got - exact).norm() > tolerance.relative * exact.norm()
    outside = ((got - exact).abs() > tolerance.elementwise * (1 + exact.abs())).any()
    assert bool(too_far | outside)
