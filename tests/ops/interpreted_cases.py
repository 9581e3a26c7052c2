"""Kernels launched by operators in Triton's interpreter; `test_interpreted.py` runs this file.

The shipped tables decide, however far their entries are: the interpreter takes small problems only.
Kernels get their default configs where their case says so.
"""

from __future__ import annotations

import gc
import json
import math
import warnings
import weakref
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_calls import check_gradients, results_of, write_defaults, write_table
from operator_cases import KERNELS, call_of
from torch import nn
from torch.nn import functional

from search_spaces import registry
from search_spaces.kernels.moe_matmul.routing import block_order, most_blocks, slots_by_expert
from search_spaces.records import Workload
from search_spaces.tensors import empty_tensors
from tuner import ops, runtime
from tuner.ops import choosing
from tuner.ops.experts import _blocks_of, _order_slots
from tuner.ops.operator import OPERATORS
from workers.device import offline


@pytest.fixture(autouse=True)
def every_entry_serves():
    forget_all()
    with ops.prefer_tuned():
        yield


def forget_all():
    for operator in OPERATORS.values():
        operator.forget()


def workloads_of(kernel):
    """Different small workloads that an operator can have."""
    found = [kernel.small_workload(each) for each in kernel.workloads()]
    if KERNELS[kernel.name].multiplies:
        found = [each.with_dims(dtype="float16") for each in found if each["dtype"] != "float32"]
    return list(dict.fromkeys(found))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A folder of tables besides the shipped ones."""
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    yield tmp_path
    runtime.clear()


@pytest.fixture
def defaults(tables):
    """Writes a table of the default configs of a kernel's small workloads."""

    def write(name):
        kernel = registry.load(name)
        write_defaults(tables, kernel, workloads_of(kernel))

    return write


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_baseline_gets_the_tensors_of_each_call(tables, shape):
    kernel, dims = registry.load("activation"), {"rows": 6, "cols": 8}
    workload = Workload.from_mapping({**dims, "function": "gelu", "dtype": "float32"})
    write_defaults(tables, kernel, [workload], implementation="torchscript",
                   baselines={"torchscript": 0.5, "eager": 0.9})  # fmt: skip
    whole = torch.randn(3, *shape)
    for x in (whole[0], whole[2], torch.randn(shape), whole[1].requires_grad_()):
        with torch.enable_grad():
            found = ops.activation(x, "gelu")
        torch.testing.assert_close(found, functional.gelu(x))
        assert found.requires_grad is x.requires_grad
    assert [use.implementation for use in ops.report()] == ["torchscript"]


def tuned_runs():
    """How often each operator has run a kernel."""
    return {use.operator: use.calls for use in ops.report() if use.implementation == "tuned"}


def layer(ids):
    """x, gate_up, down and weights of a layer of four experts for 20 tokens, and the ids."""
    given = (torch.randn(20, 32), torch.randn(4, 48, 32) / 6, torch.randn(4, 32, 24) / 5)
    return *given, torch.rand(20, 2), torch.tensor(ids, dtype=torch.int32)


def check_near(out, exact):
    assert (out.double() - exact).norm() <= 2e-3 * exact.norm()


@pytest.mark.parametrize("name", [name for name, each in KERNELS.items() if each.interpreted])
def test_a_call_is_the_kernel(name, defaults):
    kernel = registry.load(name)
    if KERNELS[name].defaults:
        defaults(name)
    launched = 0
    for workload in workloads_of(kernel):
        tensors = kernel.make_inputs(workload, 0, "cpu")
        call = call_of(name, workload, tensors)
        if call is None or launched == 2:
            continue
        with torch.no_grad():
            found = results_of(call())
        if not any(use.implementation == "tuned" for use in ops.report()):
            continue
        launched += 1
        expected = kernel.reference(workload, tensors)
        bound = kernel.tolerance(workload).relative
        for out, exact in zip(found, expected.values(), strict=False):
            error = (out.double() - exact.double()).norm() / (exact.double().norm() + 1e-300)
            assert error <= 2 * bound  # the interpreter cuts bfloat16 off, where hardware rounds
        kept = [weakref.ref(each) for each in tensors.values()]
        del tensors, call, found, out
        gc.collect()
        assert not any(each() is not None for each in kept)
        forget_all()
    assert launched


@settings(max_examples=40, deadline=None)
@given(
    ids=st.integers(1, 40).flatmap(
        lambda experts: st.tuples(
            st.just(experts), st.lists(st.integers(0, experts - 1), min_size=1, max_size=60)
        )
    ),
    size=st.sampled_from([16, 32, 64]),
)
def test_one_launch_orders_slots_as_torch_does(ids, size):
    experts, given_ids = ids
    slots, ends = slots_by_expert(torch.tensor(given_ids, dtype=torch.int32)[:, None], experts)
    blocks = most_blocks(len(slots), experts, size)
    tensors = {"sorted_slots": slots, "ends": ends}
    config = {"BLOCK_SIZE_M": size}
    made = _blocks_of(config, tensors)
    tensors |= empty_tensors(made, "cpu")
    launch = _order_slots(config, tensors)
    launch.fn[launch.grid](*launch.args, **launch.kwargs)
    for name, expected in zip(made, block_order(slots, ends, size, blocks), strict=True):
        assert torch.equal(tensors[name], expected)


def test_a_layer_of_experts_orders_its_slots_in_each_call(defaults):
    defaults("moe_matmul")
    routings = [[[0, 2]] * 20, [[3, 1], [1, 3]] * 10, [[at % 4, (at + 1) % 4] for at in range(20)]]
    for routing in routings:  # also an expert of all tokens, and some of none
        *given, weights, ids = layer(routing)
        given = [each.half() for each in given]
        exact = ops.moe(*(each.double() for each in (*given, weights)), ids)
        check_near(ops.moe(*given, weights, ids), exact)
    assert tuned_runs() == {"moe_gate_up": 3, "moe_down": 3}


def test_a_layer_of_experts_runs_kernels_under_autocast(defaults):
    defaults("moe_matmul")
    given = layer([[0, 2]] * 20)
    exact = ops.moe(*given)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        out = ops.moe(*given)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert out.dtype is torch.float16
    check_near(out, exact)
    assert tuned_runs() == {"moe_gate_up": 1, "moe_down": 1}


def test_lengths_of_sequences_are_free(defaults):
    defaults("varlen_attention")
    half = [torch.randn(60, heads, 64).half() for heads in (4, 2, 2)]
    for bounds in ([0, 60, 60, 60], [0, 0, 1, 60], [0, 20, 40, 60]):
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
        for window in (0, 7):
            settings = {"causal": True, "window": window}
            exact = ops.varlen_attention(*(e.double() for e in half), cu_seqlens, **settings)
            check_near(ops.varlen_attention(*half, cu_seqlens, **settings), exact)
    runs = [use.calls for use in ops.report() if use.implementation == "tuned"]
    assert runs == [3, 3]


def test_gradients_pass_through_kernels():
    x = torch.randn(13, 509, requires_grad=True)
    w = torch.randn(509, requires_grad=True)
    out, expected = ops.rms_norm(x, w.shape, w, 1e-5), functional.rms_norm(x, (509,), w, 1e-5)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    check_gradients(out, expected, (x, w), close=close)
    assert "rms_norm" in tuned_runs()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its first tangent
def test_dual_numbers_keep_their_tangents(defaults):
    defaults("softmax")
    x, v = torch.randn(7, 509), torch.randn(7, 509)
    expected = torch.func.jvp(lambda x: x.softmax(-1), (x,), (v,))[1]
    for grad in (False, True):
        ops.softmax(x.requires_grad_(grad))
        with torch.autograd.forward_ad.dual_level():
            out = ops.softmax(torch.autograd.forward_ad.make_dual(x, v))
            tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
        torch.testing.assert_close(tangent, expected)
    assert "softmax" in tuned_runs()


@pytest.mark.parametrize("implementation", ["tuned", "copied"])
def test_results_can_be_changed_in_place_in_training(tables, monkeypatch, implementation):
    kernel = registry.load("rms_norm")
    workload = kernel.small_workload(kernel.workloads()[0]).with_dims(dtype="float32")
    own = {"copied": kernel.baselines(workload)["eager"]}
    monkeypatch.setattr("tuner.ops.operator.find_baseline", lambda _, __, name: own[name])
    fields = {"implementation": implementation, "baselines": {"copied": 0.9, "eager": 1.2}}
    write_defaults(tables, kernel, [workload], **fields)
    forget_all()
    rows, cols = workload.sizes("rows", "cols")
    x, w = torch.randn(1, rows, cols, requires_grad=True), torch.randn(cols)
    y = ops.rms_norm(x, (cols,), w, 1e-5)
    assert not y._is_view()
    y += 1
    y.sum().backward()
    (use,) = [use for use in ops.report() if use.operator == "rms_norm"]
    assert use.implementation == implementation


def test_the_next_fastest_replaces_a_baseline_that_is_missing(tables):
    kernel = registry.load("softmax")
    workload = kernel.small_workload(kernel.workloads()[0]).with_dims(dtype="float32")
    x = kernel.make_inputs(workload, 0, "cpu")["x"]
    own = {"no such library": 0.8, "eager": 1.2}
    for baselines, runs in ((own, "tuned"), (own | {"eager": 0.9}, "eager")):
        fields = {"implementation": "no such library", "baselines": baselines}
        write_defaults(tables, kernel, [workload], **fields)
        forget_all()
        torch.testing.assert_close(ops.softmax(x), x.softmax(-1))
        (use,) = [use for use in ops.report() if use.operator == "softmax"]
        assert use.implementation == runs
        why = "no such library failed: KernelError: kernel softmax has no baseline"
        assert use.reason.startswith(why)
        assert use.reason.endswith("; next fastest in its entry")


def write_invariant(folder, kernel, entries):
    write_table(folder, kernel, entries, "NVIDIA H200")
    document = json.loads((folder / f"{kernel}.json").read_text())
    document["provenance"]["numerics"] = "batch_invariant"
    (folder / f"{kernel}.json").write_text(json.dumps(document))
    runtime.clear()


@pytest.mark.parametrize("compiled", [False, True])
def test_heads_as_projections_leave_them_keep_the_bits_of_a_row(tables, compiled):
    """Attention of a model: views of what is contiguous, and its scale as models compute it."""
    kernel = registry.load("attention")
    dims = {"heads": 2, "sequence": 32, "head_dim": 128, "causal": True, "dtype": "float16"}
    workload = Workload.of(batch=4, **dims)
    config = kernel.default_config(workload, offline("cuda:90"))
    sizes = {"batch": runtime.Span(1, 8)}
    entry = runtime.Entry(workload.as_dict(), config, sizes=sizes, serves=sizes)
    write_invariant(tables, "attention", [entry])
    given = [torch.randn(4, 32, 2, 128).half().transpose(1, 2) for _ in range(3)]

    def attend(*given):
        return functional.scaled_dot_product_attention(*given, is_causal=True, scale=128**-0.5)

    run = torch.compile(attend, backend="aot_eager") if compiled else attend
    with ops.numerics("batch_invariant"), warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = run(*given)
        for at in range(4):
            alone = run(*(each[at : at + 1] for each in given))
            assert torch.equal(alone, whole[at : at + 1])
        runs = {use.implementation for use in ops.report() if use.operator == "attention"}
    assert runs == {"tuned"}
    torch.testing.assert_close(whole, attend(*given), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dim", [64, 96, 128])
def test_only_another_scale_than_the_usual_one_runs_on_torch(defaults, dim):
    q = torch.randn(1, 1, 16, dim).half()
    usual = [None, dim**-0.5, 1 / math.sqrt(dim), float(torch.tensor(dim**-0.5))]
    for scale in [*usual, 0.1, 2 * dim**-0.5, -(dim**-0.5), math.nan]:
        before = sum(use.calls for use in ops.report() if use.operator == "attention")
        ops.attention(q, q, q, scale=scale)
        after = sum(use.calls for use in ops.report() if use.operator == "attention")
        assert after - before == (scale in usual)


def test_plain_layers_of_a_patched_model_keep_the_bits_of_a_row(tables):
    """Layers with and without a bias, in a model of no known class, with and without gradients."""
    kernel, entries = registry.load("linear"), []
    for n, k, bias in ((24, 16, True), (16, 24, False)):
        workload = Workload.of(M=64, N=n, K=k, epilogue="none", bias=bias, dtype="float32")
        config = kernel.default_config(workload, offline("cuda:90"))
        serves = {"M": runtime.Span(1, 64)}
        sizes = {name: runtime.Span(1, 64) for name in "MNK"}
        entries.append(runtime.Entry(workload.as_dict(), config, sizes=sizes, serves=serves))
    write_invariant(tables, "linear", entries)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16, bias=False))
    x, weights = torch.randn(40, 16), [*model.parameters()]
    plain = model(x)
    expected = torch.autograd.grad(plain.square().sum(), weights)
    ops.patch(model, numerics="batch_invariant")
    with torch.no_grad(), ops.numerics("batch_invariant"):
        whole = model(x)
        runs = [(use.operator, use.implementation, use.calls) for use in ops.report()]
        assert runs == [("plain_linear", "tuned", 1)] * 2
        for at in (0, 17, 39):
            assert torch.equal(model(x[at : at + 1]), whole[at : at + 1])
            assert torch.equal(model(x[at:]), whole[at:])
    trained = model(x)
    assert torch.equal(trained, whole)
    torch.testing.assert_close(trained, plain)
    for found, each in zip(
        torch.autograd.grad(trained.square().sum(), weights), expected, strict=True
    ):
        torch.testing.assert_close(found, each)
    graph = torch.compile(model, backend="aot_eager")
    assert torch.equal(graph(x), whole)
    ops.unpatch(model)
    assert torch.equal(model(x), plain)


def test_a_layer_that_runs_in_parts_is_not_served_by_a_kernel(monkeypatch):
    x, weight, bias = (torch.randn(sizes) for sizes in ((5, 32), (48, 32), (48,)))
    given = x, weight, bias, "gelu"
    monkeypatch.setattr(choosing, "pick", lambda *_: ("eager", None))
    assert not OPERATORS["linear"].serves(*given)
    torch.testing.assert_close(ops.linear(*given), OPERATORS["linear"].reference(*given))
