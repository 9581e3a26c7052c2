"""The cross-entropy of a linear layer over a vocabulary, and its gradients."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

NAMES = ("linear_cross_entropy", "linear_cross_entropy_backward")
USUAL = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 1}
USUAL |= {"num_warps": 4, "num_stages": 2}
SIZES = [(37, 71, 301), (16, 64, 256), (1, 16, 3), (9, 33, 700)]


def workload(tokens: int, dim: int, vocab: int, dtype: str = "float16") -> Workload:
    return Workload.of(tokens=tokens, dim=dim, vocab=vocab, dtype=dtype)


def test_every_division_of_the_vocabulary_has_the_loss():
    configs = [{**USUAL, "steps": steps} for steps in (1, 2, 16)]
    configs.append({**USUAL, "BLOCK_M": 32, "BLOCK_N": 128, "GROUP_M": 8, "steps": 2})
    jobs = [(NAMES[0], workload(*each), config) for each in SIZES for config in configs]
    jobs.append((NAMES[0], workload(*SIZES[0], dtype="bfloat16"), configs[1]))
    assert wrong(jobs) == []


def test_every_number_of_slices_has_the_gradients():
    configs = [{**USUAL, "slices": slices} for slices in (1, 4)]
    configs.append({**USUAL, "BLOCK_M": 32, "BLOCK_K": 128, "GROUP_M": 8, "slices": 2})
    jobs = [(NAMES[1], workload(*each), config) for each in SIZES[1:] for config in configs[1:]]
    jobs.append((NAMES[1], workload(*SIZES[0], dtype="bfloat16"), configs[0]))
    assert wrong(jobs) == []


def test_the_gradients_are_those_of_autograd():
    forward, backward = (load(name) for name in NAMES)
    small = workload(23, 32, 101)
    inputs = dict(backward.make_inputs(small, 1, "cpu"))
    hidden, weight = (inputs[name].double().requires_grad_() for name in ("hidden", "weight"))
    logits = hidden @ weight.T
    loss = torch.nn.functional.cross_entropy(logits, inputs["target"], reduction="none")
    found = forward.reference(
        small, {name: inputs[name] for name in ("hidden", "weight", "target")}
    )
    assert torch.allclose(found["loss"], loss.detach())
    assert torch.allclose(found["lse"], inputs["lse"].double(), atol=1e-4)
    loss.backward(inputs["grad"].double())
    expected = backward.reference(small, inputs)
    assert torch.allclose(expected["d_hidden"], hidden.grad, atol=1e-4)
    assert torch.allclose(expected["d_weight"], weight.grad, atol=1e-4)


def test_a_missing_part_of_the_vocabulary_is_out_of_tolerance():
    forward, backward = (load(name) for name in NAMES)
    some = workload(64, 64, 32000, "bfloat16")
    inputs = dict(backward.make_inputs(some, 1, "cpu"))
    fewer = {**inputs, "weight": inputs["weight"][: 32000 - 2000]}
    known = inputs["target"] < 30000
    fewer["target"] = inputs["target"] * known
    exact, off = forward.reference(some, inputs)["lse"], forward.reference(some, fewer)["lse"]
    assert float((exact - off).norm() / exact.norm()) > forward.tolerance(some).relative
    # The gradient without the softmax: only the targets' part.
    gradient = backward.reference(some, inputs)["d_weight"]
    only = backward.reference(some, {**inputs, "lse": inputs["lse"] + 100})["d_weight"]
    assert float((gradient - only).norm() / gradient.norm()) > backward.tolerance(some).relative


@pytest.mark.parametrize("name", NAMES)
def test_products_use_tensor_cores_without_spills(name):
    kernel, large = load(name), load(name).workloads()[0]
    config = kernel.default_config(large, H200)
    launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
    first = {launch.fn.__name__: launch for launch in reversed(launches)}
    assert len(first) == (2 if name == NAMES[0] else 3)
    for function, launch in first.items():
        built = build(launch, H200)
        assert spilled_bytes(built) == 0
        if function != "combine_loss_kernel":
            assert "wgmma.mma_async" in built.asm["ptx"]
            assert "cp.async.cg" in built.asm["ptx"]


def test_the_slices_cover_the_vocabulary_and_stay_small():
    kernel = load(NAMES[1])
    for some in kernel.workloads():
        for config in list(kernel.space(some).bind(some, H200).enumerate())[::97]:
            spec = kernel.scratch(some, config)["slice"]
            vocab, words = some.size("vocab"), spec.shape[1]
            assert words % 256 == 0
            assert words * (config["slices"] - 1) < vocab + 256 * config["slices"]
            assert words <= vocab // 4 + 256
            count = len(kernel.launches(some, config, meta_tensors(kernel, some, config)))
            assert count == 3 * -(-vocab // words)
