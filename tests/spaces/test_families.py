from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces_cpu import compiled_outcomes
from spaces_devices import (
    CPU,
    CPU_AVX2,
    H200,
    MI300X,
    assemble,
    build,
    check_baseline,
    meta_tensors,
    spilled_bytes,
)
from spaces_interpret import interpret

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.records import Device, Workload
from search_spaces.registry import BUILT_IN, load
from search_spaces.tensors import is_compiled

ROOT = Path(__file__).parent.parent.parent
FAMILIES = sorted(BUILT_IN)


@pytest.fixture(scope="module")
def softmax() -> Kernel:
    return load("softmax")


@pytest.fixture(scope="module")
def matmul() -> Kernel:
    return load("matmul")


@pytest.mark.matrix("declaration")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_keeps_its_promises(name):
    kernel = load(name)
    workloads = kernel.workloads()
    assert len(workloads) >= 6
    assert len({workload.key for workload in workloads}) == len(workloads)
    devices = [CPU, CPU_AVX2] if "cpu" in kernel.kinds else [H200, MI300X]
    points = feasible = 0
    for workload in workloads:
        kernel.check_workload(workload)
        kernel.check_workload(kernel.small_workload(workload))
        cost, tolerance = kernel.cost(workload), kernel.tolerance(workload)
        assert cost.flops > 0 < cost.bytes
        assert 0 < tolerance.relative <= 1e-2
        assert set(kernel.baselines(workload)) >= {"eager", "compile"}
        for device in devices:
            bound = kernel.space(workload).bind(workload, device)
            bound.require_feasible()
            assert bound.why_not(kernel.default_config(workload, device)) is None
            # Two processors with AVX2 leave the fewest where rounding is outside the tolerance.
            assert bound.size() >= (4 if device is CPU_AVX2 else 8)
            points, feasible = points + bound.cardinality(), feasible + bound.size()
    # A random draw finds a feasible config soon; on few processors CPU threads leave the least.
    assert feasible / points >= 0.02


@pytest.mark.matrix("declaration")
@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_come_from_the_seed(name):
    kernel = load(name)
    workload = kernel.small_workload(kernel.workloads()[0])
    one, same, other = (kernel.make_inputs(workload, seed, "cpu") for seed in (1, 1, 2))
    for key, tensor in one.items():
        assert torch.equal(tensor, same[key])
        assert not torch.equal(tensor, other[key])
        assert (tensor != 0).float().mean() > 0.9
    meta = kernel.make_inputs(workload, 1, "meta")
    assert {k: (t.shape, t.dtype) for k, t in meta.items()} == {
        k: (t.shape, t.dtype) for k, t in one.items()
    }
    reference = kernel.reference(workload, one)
    assert {k: tuple(t.shape) for k, t in reference.items()} == {
        k: spec.shape for k, spec in kernel.outputs(workload).items()
    }


@pytest.mark.matrix("declaration")
@pytest.mark.parametrize("name", FAMILIES)
def test_baselines_agree_with_the_reference_or_say_what_they_need(name):
    kernel = load(name)
    for small in {kernel.small_workload(workload) for workload in kernel.workloads()}:
        for each, baseline in kernel.baselines(small).items():
            if is_compiled(baseline):
                continue
            try:
                check_baseline(kernel, small, each)
            except RuntimeError as error:
                if each == "eager" or not re.search("needs .*CUDA", f"{error}"):
                    raise


def test_softmax_takes_any_number_of_columns():
    kernel, rng, jobs = load("softmax"), random.Random(3), []
    for cols in (1, 2, 17, 1000, 5003):
        for dtype in ("float32", "bfloat16"):
            workload = Workload.of(rows=5, cols=cols, dtype=dtype)
            bound = kernel.space(workload).bind(workload, H200)
            jobs += [("softmax", workload, config) for config in bound.sample(rng, 2)]
    assert all(outcome["passed"] for outcome in interpret(jobs))


def test_every_split_and_way_to_load_computes_the_product():
    kernel = load("matmul")
    aligned = Workload.of(M=37, N=72, K=264, dtype="float16")
    odd = Workload.of(M=37, N=71, K=263, dtype="float32")
    usual = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4}
    usual["num_stages"] = 2
    jobs = [("matmul", odd, {**usual, "SPLIT_K": splits}) for splits in (1, 2, 4, 16)]
    jobs += [("matmul", aligned, {**usual, "loads": "pointer", "SPLIT_K": 8})]
    for persistent in (False, True):
        config = {**usual, "loads": "descriptor", "persistent": persistent}
        jobs.append(("matmul", aligned, config))
    assert {name for name in kernel.scratch(odd, jobs[1][2])} == {"partial"}
    outcomes = interpret(jobs)
    assert all(outcome["passed"] for outcome in outcomes), outcomes


def test_softmax_reads_and_writes_whole_words(softmax):
    for workload, device in ((softmax.workloads()[0], H200), (softmax.workloads()[4], H200)):
        config = softmax.default_config(workload, device)
        tensors = meta_tensors(softmax, workload, config)
        (launch,) = softmax.launches(workload, config, tensors)
        built = build(launch, device)
        assert spilled_bytes(built) == 0
        # 16 bytes at a time, rows of 1000 included; the exponential is one instruction.
        assert ".v4.b32" in built.asm["ptx"]
        assert "ld.global.b16" not in built.asm["ptx"]
        assert "ex2.approx" in built.asm["ptx"]


def test_the_pipelined_softmax_loads_ahead(softmax):
    workload = softmax.workloads()[0]
    config = {"num_warps": 8, "rows_per_step": 1, "steps": 8, "stream": True, "stages": 3}
    assert "cp.async" in assemble(softmax, workload, config)


def test_the_default_matmul_uses_tensor_cores_and_does_not_spill(matmul):
    workload = matmul.workloads()[0]
    config = dict(matmul.default_config(workload, H200))
    variants = [config, {**config, "BLOCK_N": 256}]
    variants += [
        {**config, "BLOCK_N": 256, "loads": "descriptor", "persistent": persistent}
        for persistent in (False, True)
    ]
    for variant in variants:
        assert "wgmma.mma_async" in assemble(matmul, workload, variant)


def test_float32_precisions_are_different_code(matmul):
    workload = matmul.workloads()[6]
    texts = {}
    for precision in ("ieee", "tf32x3", "tf32"):
        config = {**matmul.default_config(workload, H200), "precision": precision}
        (launch,) = matmul.launches(workload, config, meta_tensors(matmul, workload, config))
        texts[precision] = build(launch, H200).asm["ptx"]
    products = {name: text.count("wgmma.mma_async.sync") for name, text in texts.items()}
    assert products["ieee"] == 0 < products["tf32"] < products["tf32x3"]


def test_precision_is_offered_by_dtype_and_admitted_by_tolerance(matmul):
    single = Workload.of(M=256, N=256, K=256, dtype="float32")
    half = single.with_dims(dtype="float16")
    assert "precision" in {item.name for item in matmul.space(single).parameters}
    assert "precision" not in {item.name for item in matmul.space(half).parameters}
    assert matmul.space_hash(single) == matmul.space_hash(single.with_dims(tolerance=1e-3))
    # TF32 keeps 10 bits: products of rounded operands are out of one bound, within the other.
    inputs = matmul.make_inputs(single, 1, "cpu")
    reference = matmul.reference(single, inputs)["out"]
    rounded = [
        (t.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for t in inputs.values()
    ]
    error = float((rounded[0] @ rounded[1] - reference).norm() / reference.norm())
    assert matmul.tolerance(single).relative < error
    assert error < matmul.tolerance(single.with_dims(tolerance=1e-3)).relative


def test_the_matmul_spaces_hold_the_ones_they_are_compared_on(matmul):
    square, slender = matmul.workloads()[0], matmul.workloads()[3]
    bound = matmul.space(square).bind(square, H200).restrict({"loads": ["pointer"]})
    assert bound.size() == 336
    narrow = {
        "BLOCK_N": [32, 64, 128, 256],
        "BLOCK_K": [64, 128, 256],
        "GROUP_M": [1],
        "loads": ["pointer"],
        "SPLIT_K": [1],
    }
    assert matmul.space(slender).bind(slender, H200).restrict(narrow).size() == 279


def test_sources_do_not_depend_on_the_interpreter(softmax, matmul):
    code = "from search_spaces.registry import load; print(load('{}').launch_hash())"
    for kernel in (softmax, matmul):
        command = [sys.executable, "-c", code.format(kernel.name)]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.strip() == kernel.launch_hash()


BAD = [
    ("softmax", {"rows": 4, "cols": 4}, "dtype is missing"),
    ("softmax", {"rows": 4, "cols": 40000, "dtype": "float32"}, "more than the 32768"),
    ("softmax", {"rows": 4, "cols": 0, "dtype": "float32"}, "cols is 0"),
    ("softmax", {"rows": 4, "cols": True, "dtype": "float32"}, "not an integer"),
    ("softmax", {"rows": 4, "cols": "<b>", "dtype": "float32"}, "not an integer"),
    ("softmax", {"rows": 4, "cols": 4, "dtype": "int8"}, "'int8' is not supported"),
    ("softmax", {"rows": 4, "col": 4, "dtype": "float32"}, "did you mean 'cols'"),
    ("matmul", {"M": 4, "N": 4, "K": 4, "dtype": "float64"}, "not supported"),
    ("matmul", {"M": 4, "N": 4, "K": 4, "dtype": "float32", "tolerance": -1}, "not a positive"),
    ("matmul", {"M": 4, "N": 4, "K": 4, "dtype": "float32", "tolerance": "x"}, "not a positive"),
    ("cpu_pointwise", {"rows": 4, "cols": 4, "dtype": "bfloat16"}, "use float32"),
    ("activation", {"rows": 4, "cols": 4, "dtype": "float32"}, "function is missing"),
    (
        "activation",
        {"rows": 4, "cols": 4, "dtype": "float32", "function": "relu2"},
        "'relu2'; did you mean 'relu",
    ),
    (
        "elementwise",
        {"rows": 4, "cols": 4, "dtype": "float32", "operation": 3},
        "use add, multiply, fma, affine, cast",
    ),
    (
        "reduction",
        {"rows": 4, "cols": 4, "dtype": "float32", "operation": "sum", "axis": 2},
        "axis is 2 use 0, 1",
    ),
    (
        "rotary",
        {
            "tokens": 4,
            "q_heads": 2,
            "k_heads": 1,
            "head_dim": 96,
            "interleaved": False,
            "dtype": "float32",
        },
        "head_dim is 96 use 64, 128, 256",
    ),
]


@pytest.mark.parametrize(("name", "dims", "complaint"), BAD)
def test_bad_workloads_are_refused_in_one_line(name, dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        load(name).check_workload(Workload.from_mapping(dims))
    text = f"{caught.value.message} {caught.value.hint}"
    assert complaint in text
    assert name in text
    assert caught.value.hint
    assert "\n" not in text


@settings(max_examples=40)
@given(
    st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from(["M", "C"])
)
def test_every_problem_has_a_feasible_default(m, n, k, which):
    if which == "M":
        kernel, workload = load("matmul"), Workload.of(M=m, N=n, K=k, dtype="float16")
    else:
        kernel, workload = load("softmax"), Workload.of(rows=m, cols=n, dtype="float16")
    for device in (H200, MI300X):
        bound = kernel.space(workload).bind(workload, device)
        assert bound.why_not(kernel.default_config(workload, device)) is None


def test_vendor_baselines_say_why_they_cannot_run_here():
    for name in ("softmax", "matmul"):
        kernel = load(name)
        workload = kernel.small_workload(kernel.workloads()[0])
        inputs = kernel.make_inputs(workload, 1, "cpu")
        with pytest.raises(RuntimeError, match=r"needs (a )?CUDA"):
            kernel.baselines(workload)["vendor"](inputs)


def test_cpu_variants_compute_the_reference_within_their_tolerance():
    kernel = load("cpu_pointwise")
    workload = Workload.of(rows=7, cols=501, dtype="float32", tolerance=1e-2)
    default = kernel.default_config(workload, CPU)
    rough = {**default, "threads": 1, "gelu": "tanh", "decompose_tanh": True, "store_gelu": True}
    configs = (default, rough, {**rough, "precision": "bfloat16"})
    outcomes = compiled_outcomes([("cpu_pointwise", workload, config) for config in configs])
    errors = [outcome["error"] for outcome in outcomes]
    assert errors[0] < kernel.tolerance(Workload.of(rows=7, cols=501, dtype="float32")).relative
    assert errors[0] < errors[1] < 1e-3 < errors[2] < 1e-2
    assert kernel.cpu_threads(workload, default) == 2


@pytest.mark.parametrize("tolerance", [None, 5e-5, 1e-3, 1e-2])
def test_cpu_pointwise_offers_the_forms_that_keep_the_tolerance(tolerance):
    """No config is left out that would pass, and none offered that must fail."""
    kernel = load("cpu_pointwise")
    workload = Workload.of(rows=64, cols=1024, dtype="float32")
    workload = workload.with_dims(tolerance=tolerance) if tolerance else workload
    inputs = kernel.make_inputs(workload, 1, "cpu")
    reference = kernel.reference(workload, inputs)["out"]
    bound = kernel.space(workload).bind(workload, CPU)
    for gelu, precision in product(("erf", "tanh"), ("float32", "bfloat16")):
        hidden = torch.nn.functional.gelu(
            inputs["x"] + inputs["bias"], approximate="tanh" if gelu == "tanh" else "none"
        )
        out = hidden.to(getattr(torch, precision)).float().softmax(-1).double()
        error = float((out - reference).norm() / reference.norm())
        config = bound.complete({"threads": 1, "gelu": gelu, "precision": precision})
        assert bound.feasible(config) is (error <= kernel.tolerance(workload).relative)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_rounded_to_the_output_dtype_is_admissible(name):
    """Also for the values each workload really has, which shrink or grow with its sizes."""
    kernel = load(name)
    for workload in kernel.workloads():
        few = {"rows": 64, "cols": 4096, "tokens": 64, "batch": 1, "vocab": 999, "M": 64, "N": 96}
        few |= {"experts": 9, "hidden": 96, "intermediate": 48}
        few |= {"d0": 1, "d1": 64, "d2": 99}
        few |= {"pixels": 1000}
        few |= {"queries": 64, "keys": 64, "sequences": 4, "sequence": 99}
        few |= {"length": 64}
        few = {name: size for name, size in few.items() if name in workload}
        workload = workload.with_dims(**few)
        tolerance = kernel.tolerance(workload)
        expected = kernel.reference(workload, kernel.make_inputs(workload, 1, "cpu"))
        for output, spec in kernel.outputs(workload).items():
            exact = expected[output].double()
            off = (exact.to(getattr(torch, spec.dtype)).double() - exact).abs()
            assert off.norm() <= tolerance.relative * exact.norm(), workload.key
            assert bool((off <= tolerance.elementwise * (1 + exact.abs())).all()), workload.key


def test_features_of_matmul_tell_shared_memory_registers_and_waves():
    workload = Workload.of(M=4096, N=4096, K=4096, dtype="bfloat16")
    device = Device("cuda", "card", "cuda:90", sm_count=132, shared_bytes=232448, warp_size=32)
    bound = load("matmul").space(workload).bind(workload, device)
    config = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
    config |= {"num_warps": 8, "num_stages": 3, "loads": "pointer"}
    shared, sums, resident, full, reuse = bound.features(config)
    assert 2**shared == pytest.approx((128 + 256) * 64 * 2 * 3)
    assert 2**sums == 128 * 256 / 256
    assert resident == 0  # one program on each multiprocessor
    assert full == pytest.approx(32 * 16 / 132 / 4)
    assert 2**reuse == pytest.approx(128 * 256 / 384)
    assert all(len(bound.features(c)) == 5 for c in islice(bound.enumerate(), 50))
