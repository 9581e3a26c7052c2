"""The products of mixture-of-experts layers: routing, order of slots, tiles, baselines."""

from __future__ import annotations

import pytest
import torch
from spaces_devices import H200, assemble
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.moe_matmul.baselines import gathered, grouped
from search_spaces.kernels.moe_matmul.routing import active_experts
from search_spaces.kernels.moe_matmul.space import BLOCKS, GEMMS, QUANTIZED
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

USUAL = {"BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
USUAL |= {"num_warps": 4, "num_stages": 2}


def workload(gemm: str, **sizes: object) -> Workload:
    usual = {"tokens": 7, "experts": 5, "top_k": 2, "hidden": 40, "intermediate": 24}
    return Workload.of(**{**usual, "gemm": gemm, "dtype": "float16", **sizes})


@pytest.mark.parametrize("gemm", GEMMS)
def test_any_routing_has_its_products(gemm):
    sizes = [{}, {"tokens": 1}, {"top_k": 5, "dtype": "bfloat16"}, {"experts": 1, "top_k": 1}]
    sizes += [{"hidden": 64, "intermediate": 32, "tokens": 20}]
    configs = [{**USUAL, "BLOCK_SIZE_M": 16}]
    configs += [{**USUAL, "BLOCK_SIZE_M": 32, "GROUP_SIZE_M": 8, "BLOCK_SIZE_N": 64}]
    jobs = [("moe_matmul", workload(gemm, **each), config) for each in sizes for config in configs]
    assert wrong(jobs) == []


@pytest.mark.parametrize("tokens", [1, 9, 300])
def test_blocks_hold_every_slot_once_and_a_single_expert_each(tokens):
    kernel, some = load("moe_matmul"), workload("down", tokens=tokens, experts=64, top_k=4)
    inputs = kernel.make_inputs(some, 3, "cpu")
    ids, slots = inputs["ids"].reshape(-1), tokens * 4
    assert int(ids.unique().numel()) == active_experts(some)
    assert all(len(set(row)) == 4 for row in inputs["ids"].tolist())
    for block in BLOCKS:
        order, experts = inputs[f"order_{block}"], inputs[f"experts_{block}"]
        used = order[order < slots]
        assert torch.equal(used.sort().values, torch.arange(slots, dtype=torch.int32))
        for at, expert in zip(order.view(-1, block), experts.tolist(), strict=True):
            held = at[at < slots].long()
            assert (len(held) > 0) == (expert >= 0)
            assert bool((ids[held] == expert).all())
    by_expert = ids[inputs["sorted_slots"].long()]
    assert torch.equal(by_expert, ids.sort().values)
    assert int(inputs["ends"][-1]) == slots


def test_routing_is_uneven_and_reaches_more_experts_with_more_tokens():
    kernel, many = load("moe_matmul"), workload("down", tokens=4096, experts=64, top_k=4)
    counts = torch.bincount(kernel.make_inputs(many, 1, "cpu")["ids"].reshape(-1), minlength=64)
    assert 3 < float(counts.max() / counts.min()) < 10
    reached = [active_experts(many.with_dims(tokens=tokens)) for tokens in (1, 4, 16, 4096)]
    assert reached[0] == 4 < reached[1] < reached[2] < reached[3] == 64


@pytest.mark.parametrize("gemm", GEMMS)
def test_baselines_agree_with_the_reference(gemm):
    kernel, small = load("moe_matmul"), workload(gemm, dtype="bfloat16")
    inputs = kernel.make_inputs(small, 1, "cpu")
    expected = kernel.reference(small, inputs)["out"]
    weights = [inputs["weights"]] if gemm == "down" else []
    by_token = [inputs[name] for name in ("x", "w", "ids")] + weights
    by_order = [inputs[name] for name in ("x", "w", "sorted_slots", "ends")] + weights
    found = [kernel.baselines(small)["eager"](inputs)["out"], gathered(small)(*by_token)]
    found.append(grouped(small)(*by_order))
    for got in found:
        assert got.dtype == torch.bfloat16
        assert torch.allclose(got.double(), expected, atol=3e-2)
    with pytest.raises(RuntimeError, match="needs CUDA tensors of bfloat16"):
        kernel.baselines(small)["grouped_mm"](inputs)


def test_the_products_are_those_of_the_layer():
    kernel, first = load("moe_matmul"), workload("gate_up_silu")
    inputs = kernel.make_inputs(first, 1, "cpu")
    x, w, ids = (inputs[name].double() for name in ("x", "w", "ids"))
    both = torch.einsum("tk,tsnk->tsn", x, w[ids.long()])
    gate, value = both[..., :24], both[..., 24:]
    expected = gate * torch.sigmoid(gate) * value
    assert torch.allclose(kernel.reference(first, inputs)["out"], expected)
    second = workload("down")
    inputs = kernel.make_inputs(second, 1, "cpu")
    x, w = inputs["x"].double().view(7, 2, 24), inputs["w"].double()[inputs["ids"].long()]
    expected = torch.einsum("tsk,tsnk->tsn", x, w) * inputs["weights"].double()[..., None]
    assert torch.allclose(kernel.reference(second, inputs)["out"], expected)


@pytest.mark.parametrize("gemm", GEMMS)
def test_tiles_use_tensor_cores_without_spills(gemm):
    kernel = load("moe_matmul")
    sizes = {"experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768, "dtype": "bfloat16"}
    large = workload(gemm, **sizes, tokens=4096)
    few = workload(gemm, **sizes, tokens=16)
    wide = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 16}
    variants = [(few, kernel.default_config(few, H200), "mma.sync")]
    variants += [(large, kernel.default_config(large, H200), "wgmma.mma_async")]
    variants += [(large, {**wide, "num_warps": 8, "num_stages": 3}, "wgmma.mma_async")]
    for some, config, instruction in variants:
        ptx = assemble(kernel, some, config)
        assert instruction in ptx
        assert "cp.async.cg.shared.global [ %r" in ptx


def test_parameters_are_those_of_vllms_tables():
    kernel = load("moe_matmul")
    some = kernel.workloads()[0]
    names = {item.name for item in kernel.space(some).parameters}
    blocks = {f"BLOCK_SIZE_{dim}" for dim in "MNK"}
    assert names == blocks | {"GROUP_SIZE_M", "num_warps", "num_stages"}
    # A row of vLLM's table for the H200: E=128, N=512, 4096 tokens.
    row = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    some = workload("gate_up", tokens=4096, experts=128, top_k=8, hidden=2048, intermediate=512)
    bound = kernel.space(some).bind(some, H200)
    assert bound.why_not({**row, "num_warps": 8, "num_stages": 3}) is None


def test_more_choices_than_experts_are_refused():
    with pytest.raises(WorkloadError, match="top_k is 9, more than the 5 experts") as caught:
        load("moe_matmul").check_workload(workload("down", top_k=9))
    assert caught.value.hint == "give top_k of at most 5"
    with pytest.raises(WorkloadError, match="gemm is 'up'"):
        load("moe_matmul").check_workload(workload("up"))


@pytest.mark.parametrize("gemm", ["gate_up", "down"])
@pytest.mark.parametrize("quantized", QUANTIZED)
def test_quantized_operands_have_their_products(gemm, quantized):
    sizes = [{"hidden": 200, "intermediate": 136}, {"hidden": 256, "intermediate": 128}]
    configs = [{**USUAL, "BLOCK_SIZE_M": 16}, {**USUAL, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_K": 128}]
    jobs = [
        ("moe_matmul", workload(gemm, **each, quantized=quantized, dtype="bfloat16"), config)
        for each in sizes
        for config in configs
    ]
    assert wrong(jobs) == []


@pytest.mark.parametrize("gemm", ["gate_up", "down"])
@pytest.mark.parametrize("quantized", QUANTIZED)
def test_the_quantized_reference_is_that_of_the_numbers_behind_the_codes(gemm, quantized):
    kernel = load("moe_matmul")
    some = workload(gemm, hidden=200, intermediate=136, quantized=quantized, dtype="bfloat16")
    inputs = kernel.make_inputs(some, 1, "cpu")
    x, w, scale = (inputs[name].double() for name in ("x", "w", "w_scale"))
    if quantized == "fp8_block128":
        at_n, at_k = torch.arange(w.shape[1]) // 128, torch.arange(w.shape[2]) // 128
        w, x = w * scale[:, at_n][:, :, at_k], x * inputs["x_scale"].double()[:, at_k]
    elif quantized == "fp8_tensor":
        w, x = w * scale[:, None, None], x * inputs["x_scale"].double()
    else:
        w = w * scale[:, :, None]
    rows = torch.arange(14) // (2 if gemm == "gate_up" else 1)
    out = torch.einsum("sk,snk->sn", x[rows], w[inputs["ids"].reshape(-1).long()])
    if gemm == "down":
        out = out * inputs["weights"].double().reshape(-1, 1)
    found = kernel.reference(some, inputs)["out"]
    assert torch.allclose(found.view(14, -1), out)
    assert 0.2 < float(found.std()) < 5
    eager = kernel.baselines(some)["eager"](inputs)["out"]
    assert eager.dtype == torch.bfloat16
    assert torch.allclose(eager.double(), found, atol=6e-2)


@pytest.mark.parametrize("gemm", ["gate_up", "down"])
@pytest.mark.parametrize("quantized", QUANTIZED)
def test_quantized_tiles_use_tensor_cores_without_spills(gemm, quantized):
    kernel = load("moe_matmul")
    sizes = {"experts": 256, "top_k": 8, "hidden": 7168, "intermediate": 256, "dtype": "bfloat16"}
    for tokens in (16, 4096):
        some = workload(gemm, **sizes, tokens=tokens, quantized=quantized)
        config = kernel.default_config(some, H200)
        if tokens == 4096:
            config = {**config, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "num_warps": 8}
        ptx = assemble(kernel, some, config)
        wide = tokens == 4096 and quantized.startswith("fp8")
        assert ("wgmma.mma_async" if wide else "mma") in ptx
    cost = kernel.cost(some)
    assert cost.flops == kernel.cost(some.with_dims(quantized="int8_channel")).flops
    plain = workload(gemm, **sizes, tokens=16)
    assert kernel.cost(plain.with_dims(quantized=quantized)).bytes < 0.6 * kernel.cost(plain).bytes


def test_wrong_quantized_workloads_are_refused():
    kernel = load("moe_matmul")
    with pytest.raises(WorkloadError, match="gate_up_silu has no quantized operands"):
        kernel.check_workload(workload("gate_up_silu", quantized="fp8_tensor"))
    with pytest.raises(WorkloadError, match="quantized is 'fp8'"):
        kernel.check_workload(workload("down", quantized="fp8"))
    small = kernel.small_workload(workload("down", hidden=7168, quantized="fp8_block128"))
    assert small.size("hidden") > 128
