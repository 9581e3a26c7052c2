"""Attention: right at every edge of blocks and diagonals, and on tensor cores."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces_devices import H200, MI300X, build, meta_tensors, resources
from spaces_interpret import ROOT, interpret

from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel
from search_spaces.kernels import masked_attention
from search_spaces.records import Workload
from search_spaces.registry import load, spec_of

pytestmark = pytest.mark.family

USUAL = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2, "loads": "pointer"}
ORDERS = ("head", "block")
USUAL["order"] = "head"
SMALL = {"batch": 1, "heads": 2, "sequence": 77, "head_dim": 64, "causal": True, "dtype": "float16"}


def workload_of(**dims: object) -> Workload:
    return Workload.from_mapping({**SMALL, **dims})


@pytest.fixture(scope="module")
def attention() -> Kernel:
    return load("attention")


def test_the_family_keeps_its_promises(attention):
    assert spec_of(type(attention)()) == "attention"
    workloads = attention.workloads()
    assert len({workload.key for workload in workloads}) == len(workloads) >= 6
    for workload in workloads:
        small = attention.small_workload(workload)
        for one in (workload, small):
            attention.check_workload(one)
        assert small["causal"] == workload["causal"]
        # Not a multiple of any block.
        assert small.size("sequence") % 16 != 0
        assert set(attention.baselines(workload)) >= {"eager", "compile", "vendor"}
        for device in (H200, MI300X):
            bound = attention.space(workload).bind(workload, device)
            assert bound.why_not(attention.default_config(workload, device)) is None
            assert 8 <= bound.size() <= 520
        assert attention.space(workload).bind(workload, H200).size() >= 100


def test_inputs_come_from_the_seed(attention):
    one, same, other = (attention.make_inputs(workload_of(), seed, "cpu") for seed in (1, 1, 2))
    assert set(one) == {"q", "k", "v"}
    for key, tensor in one.items():
        assert tuple(tensor.shape) == (1, 2, 77, 64)
        assert torch.equal(tensor, same[key])
        assert not torch.equal(tensor, other[key])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("held", [77, 1000, 2**24])
def test_the_reference_is_the_definition_in_whatever_pieces(attention, monkeypatch, causal, held):
    monkeypatch.setattr(masked_attention, "_SCORES", held)
    workload = workload_of(batch=2, causal=causal)
    inputs = attention.make_inputs(workload, 3, "cpu")
    q, k, v = (inputs[name].double() for name in "qkv")
    scores = q @ k.transpose(-1, -2) / math.sqrt(64)
    if causal:
        seen = torch.ones(77, 77, dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    found = attention.reference(workload, inputs)["out"]
    assert found.dtype == torch.float64
    assert torch.allclose(found, torch.softmax(scores, -1) @ v, rtol=1e-10, atol=1e-12)


def test_causal_problems_count_only_what_is_seen(attention):
    whole, half = (attention.cost(workload_of(causal=causal)) for causal in (False, True))
    assert whole.bytes == half.bytes == 4 * 2 * 77 * 64 * 2
    assert whole.flops == 4 * 2 * 77 * 77 * 64
    assert half.flops == 4 * 2 * (77 * 78 // 2) * 64


def test_variants_compute_the_reference(attention):
    rng, jobs = random.Random(7), []
    for workload in attention.workloads():
        small = attention.small_workload(workload).with_dims(heads=2)
        bound = attention.space(workload).bind(workload, H200)
        interpreted = bound.restrict({"dialect": ["triton"]})
        configs = [attention.default_config(workload, H200), *interpreted.sample(rng, 2)]
        jobs += [("attention", small, config) for config in configs]
    outcomes = interpret(jobs)
    wrong = [(job, got) for job, got in zip(jobs, outcomes, strict=True) if not got["passed"]]
    assert not wrong, wrong


def test_every_way_through_is_right_at_every_edge(attention):
    """Sequences shorter than a block, one off a block, and whole blocks; blocks of keys larger
    and smaller than those of queries; two heads, of which the first must not read the second."""
    jobs = []
    for size in (1, 17, 63, 64, 65, 128, 130):
        for loads in ("pointer", "descriptor"):
            plain = workload_of(sequence=size, causal=False)
            jobs += [
                ("attention", plain, {**USUAL, "loads": loads, "order": order}) for order in ORDERS
            ]
            for at, split in enumerate((False, True)):
                order = ORDERS[(at + size) % 2]
                config = {**USUAL, "loads": loads, "split": split, "order": order}
                config["BLOCK_N"] = 32 if size % 2 else 128
                jobs.append(("attention", workload_of(sequence=size), config))
    outcomes = interpret(jobs)
    wrong = [(job, got) for job, got in zip(jobs, outcomes, strict=True) if not got["passed"]]
    assert not wrong, wrong


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_default_uses_tensor_cores_and_does_not_spill(attention, at):
    workload = attention.workloads()[at]
    default = dict(attention.default_config(workload, H200))
    for config in (default, {**default, "loads": "descriptor"}):
        assert attention.space(workload).bind(workload, H200).feasible(config)
        (launch,) = attention.launches(workload, config, meta_tensors(attention, workload, config))
        built = build(launch, H200)
        found = resources(built)
        assert found["LOCAL"] == found["STACK"] == 0
        assert built.metadata.shared <= H200.shared_bytes
        ptx = built.asm["ptx"]
        assert "wgmma.mma_async" in ptx
        assert "ex2.approx" in ptx
        assert ("cp.async.bulk.tensor" in ptx) == (config["loads"] == "descriptor")


def test_a_split_diagonal_is_other_code(attention):
    workload = attention.workloads()[0]
    default = attention.default_config(workload, H200)
    products = []
    for split in (False, True):
        config = {**default, "split": split}
        (launch,) = attention.launches(workload, config, meta_tensors(attention, workload, config))
        products.append(build(launch, H200).asm["ptx"].count("wgmma.mma_async"))
    assert products[1] == 2 * products[0]


def test_the_edges_of_the_space_compile(attention):
    """The most shared memory and the most registers that the constraints let through."""
    workload = attention.workloads()[0]
    bound = attention.space(workload).bind(workload, H200).restrict({"dialect": ["triton"]})

    def shared(c):
        return c["BLOCK_M"] + 2 * c["num_stages"] * c["BLOCK_N"]

    def sums(c):
        return c["BLOCK_M"] * (c["BLOCK_N"] + 128) // c["num_warps"]

    for weight in (shared, sums):
        config = max(bound.enumerate(), key=weight)
        (launch,) = attention.launches(workload, config, meta_tensors(attention, workload, config))
        assert build(launch, H200).metadata.shared <= H200.shared_bytes


def test_it_compiles_for_amd_without_descriptors(attention):
    workload = attention.workloads()[0]
    config = attention.default_config(workload, MI300X)
    for launch in attention.launches(workload, config, meta_tensors(attention, workload, config)):
        assert "hsaco" in build(launch, MI300X).asm
    bound = attention.space(workload).bind(workload, MI300X)
    assert all(point["loads"] == "pointer" for point in bound.enumerate())


def test_only_causal_problems_have_a_diagonal_to_split(attention):
    names = [
        {item.name for item in attention.space(workload_of(causal=causal)).parameters}
        for causal in (False, True)
    ]
    assert names[1] - names[0] == {"split"}


def test_the_sources_do_not_depend_on_the_interpreter(attention):
    code = "from search_spaces.registry import load; print(load('attention').launch_hash())"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == attention.launch_hash()


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"head_dim": 96}, "not one of 64 and 128"),
        ({"head_dim": 256}, "more than the 128"),
        ({"causal": 1}, "not true or false"),
        ({"causal": "yes"}, "give causal=true"),
        ({"dtype": "float32"}, "use float16, bfloat16"),
        ({"sequence": 0}, "sequence is 0"),
        ({"sequence": 2**21}, "more than"),
        ({"dropout": 0.1}, "unknown dim dropout"),
    ],
)
def test_bad_workloads_are_refused_in_one_line(attention, dims, complaint):
    with pytest.raises(WorkloadError) as caught:
        attention.check_workload(workload_of(**dims))
    text = f"{caught.value.message} {caught.value.hint}"
    assert complaint in text
    assert "attention" in text
    assert "\n" not in text


@pytest.mark.parametrize("name", [*SMALL])
def test_every_dim_is_needed(attention, name):
    dims = {key: value for key, value in SMALL.items() if key != name}
    with pytest.raises(WorkloadError, match=f"{name} is missing"):
        attention.check_workload(Workload.from_mapping(dims))


@settings(max_examples=40)
@given(st.integers(1, 20000), st.sampled_from([64, 128]), st.booleans())
def test_every_problem_has_a_feasible_default(sequence, head_dim, causal):
    kernel = load("attention")
    workload = workload_of(sequence=sequence, head_dim=head_dim, causal=causal)
    for device in (H200, MI300X):
        bound = kernel.space(workload).bind(workload, device)
        assert bound.why_not(kernel.default_config(workload, device)) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_weights_and_outputs_are_admissible_and_one_wrong_key_is_not(attention, dtype):
    workload = workload_of(sequence=203, dtype=dtype)
    inputs, tolerance = attention.make_inputs(workload, 1, "cpu"), attention.tolerance(workload)
    exact = attention.reference(workload, inputs)["out"]
    kind = getattr(torch, dtype)

    def admissible(q, k, v, seen):
        scores = (q.double() @ k.double().transpose(-1, -2) / 8).masked_fill(~seen, -math.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-1, keepdim=True)
        out = (weights.to(kind).double() @ v.double() / total).to(kind).double()
        near = (out - exact).norm() <= tolerance.relative * exact.norm()
        inside = ((out - exact).abs() <= tolerance.elementwise * (1 + exact.abs())).all()
        return bool(near & inside)

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    seen = torch.ones(203, 203, dtype=torch.bool).tril()
    assert admissible(q, k, v, seen)
    assert not admissible(q, k, v, seen.tril(-1) | torch.eye(1, 203, dtype=torch.bool))
    assert not admissible(q, k, v, torch.ones_like(seen).tril(1))
    late = seen.clone()
    late[:, 192:] = False
    assert not admissible(q, k, v, late)
