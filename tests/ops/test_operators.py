"""Operators mean what torch's functions mean: on a CPU, where torch runs, and as registered."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_calls import block, check_gradients, plain_block, results_of
from operator_cases import CASES
from operator_cases.attention import paged, torchs_attention
from operator_cases.case import draw
from operator_cases.experts import experts, plain_experts
from operator_cases.rows import our_rms, rms
from operator_cases.tokens import IDS
from torch.nn import functional

import tuner
from tuner import ops
from tuner.ops.operator import OPERATORS

COUNTERPARTS = {name: each for case in CASES.values() for name, each in case.counterparts.items()}
ARGUMENTS = {name: each for case in CASES.values() for name, each in case.arguments.items()}


def test_every_operator_has_a_case():
    """One for each function, which names the operators and the kernels behind it."""
    made_of_others = {"swiglu"}
    about_calls = {
        "numerics", "patch", "prefer_tuned", "replaced", "report", "unpatch", "warm"
    }  # fmt: skip
    functions = set(ops.__all__)
    assert {*CASES} == functions - made_of_others - about_calls
    assert {*ARGUMENTS} == {*OPERATORS}
    for case in CASES.values():
        found = [OPERATORS[name]._problem(*make()) for name, make in case.arguments.items()]
        assert {problem.kernel for problem in found if problem} <= {*case.kernels}
        assert case.kernels


@pytest.mark.parametrize("name", COUNTERPARTS)
@pytest.mark.parametrize("kind", ["contiguous", "strided", "float64", "bfloat16", "empty"])
def test_results_and_gradients_are_those_of_torch(name, kind):
    ours, torchs, shapes = COUNTERPARTS[name]
    torch.manual_seed(0)
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(kind, torch.float32)
    given = [draw(*shape, dtype=dtype) for shape in shapes]
    whole = ("group", "batches", "vector", "embedding", "attention")
    if kind == "empty" and not any(word in name for word in whole):
        given = [each[:0] if each.shape == shapes[0] else each for each in given]
    if kind == "strided":
        given = [each.mT.contiguous().mT if each.ndim > 1 else each for each in given]
    needed = [each.requires_grad_() for each in given]
    out, expected = results_of(ours(*given)), results_of(torchs(*given))
    close = torch.testing.assert_close
    if (name, kind) == ("conv2d", "bfloat16"):
        # Some processors round partial sums of one layout and not of another.
        close = partial(close, rtol=1.6e-2, atol=6e-2)
    close(out, expected)
    check_gradients(out, expected, needed, close=close)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("extra", [{}, {"ignore_index": 2}, {"label_smoothing": 0.1}])
def test_cross_entropy_is_that_of_torch(reduction, extra):
    x, target = draw(6, 5, grad=True), torch.tensor([0, 2, 4, 2, 1, 3])
    out = ops.cross_entropy(x, target, reduction=reduction, **extra)
    expected = functional.cross_entropy(x, target, reduction=reduction, **extra)
    torch.testing.assert_close(out, expected)
    check_gradients(out, expected, [x])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_of_a_linear_layer_is_that_of_its_logits(reduction):
    hidden, weight = draw(6, 4, grad=True), draw(9, 4, grad=True)
    target = torch.tensor([0, 2, -100, 8, 1, 3])
    out = ops.fused_linear_cross_entropy(hidden, weight, target, reduction=reduction)
    expected = functional.cross_entropy(hidden @ weight.T, target, reduction=reduction)
    torch.testing.assert_close(out, expected)
    check_gradients(out, expected, [hidden, weight])


@given(st.integers(1, 6), st.integers(1, 4), st.booleans())
@settings(max_examples=20)
def test_a_rotation_backwards_undoes_it(tokens, heads, interleaved):
    q, k = draw(tokens, heads, 8, dtype=torch.float64), draw(tokens, 1, 8, dtype=torch.float64)
    angles = draw(tokens, 4, dtype=torch.float64)
    there = ops.rotary(q, k, angles.cos(), angles.sin(), interleaved=interleaved)
    back = ops.rotary(*there, angles.cos(), -angles.sin(), interleaved=interleaved)
    torch.testing.assert_close(back, (q, k))


@pytest.mark.parametrize("scales", ["row", "block128", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_codes_stand_for_the_numbers(scales, dtype):
    x = draw(5, 300)
    codes, scale = ops.quantize(x, dtype, scales)
    assert codes.dtype is dtype
    spread = scale.repeat_interleave(128, 1)[:, :300] if scales == "block128" else scale[:, None]
    error = (codes.float() * spread - x).norm() / x.norm()
    assert error < 0.03


def test_a_float8_layer_is_near_the_exact_one():
    x, weight = draw(3, 7, 64), draw(32, 64)
    out = ops.fp8_linear(x, *ops.quantize(weight))
    exact = x @ weight.T
    assert out.dtype is torch.bfloat16
    assert (out.float() - exact).norm() < 0.06 * exact.norm()


def test_the_nearest_center_is_found():
    x, centers = draw(20, 3), draw(4, 3)
    index, distance = ops.nearest_center(x, centers)
    exact, place = ((x[:, None] - centers) ** 2).sum(-1).min(1)
    assert torch.equal(index, place)
    torch.testing.assert_close(distance, exact)


@pytest.mark.parametrize("renormalize", [False, True])
def test_tokens_get_their_likeliest_experts(renormalize):
    logits = draw(2, 3, 9, grad=True)
    weights, ids = ops.topk_routing(logits, 4, renormalize=renormalize)
    shares = logits.softmax(-1)
    order = shares.argsort(-1, descending=True)[..., :4]
    expected = shares.gather(-1, order)
    if renormalize:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(ids, order.int())
    torch.testing.assert_close(weights, expected)
    check_gradients(weights, expected, [logits])
    with torch.no_grad():
        assert ops.topk_routing(logits.bfloat16(), 4)[0].dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_sees_the_pages_of_its_sequence(dtype):
    q, k, v, table, lengths = given = paged(dtype)
    out = ops.paged_attention(*given)
    for at, length in enumerate(lengths.tolist()):
        pages = table[at, : -(-length // 4)].long()
        keys, values = (each[pages].flatten(0, 1)[:length].transpose(0, 1) for each in (k, v))
        alone = torchs_attention(q[at, :, None], keys, values, enable_gqa=True)
        torch.testing.assert_close(out[at], alone[:, 0])


@pytest.mark.parametrize("kind", ["plain", "causal", "window"])
@pytest.mark.parametrize("bounds", [[0, 5, 12], [0, 0, 1, 12, 12], [0, 12]])
def test_a_packed_sequence_attends_to_itself(kind, bounds):
    given = [draw(12, heads, 8, grad=True) for heads in (4, 2, 2)]
    settings = {"causal": kind != "plain", "window": 3 if kind == "window" else 0}
    out = ops.varlen_attention(*given, torch.tensor(bounds, dtype=torch.int32), **settings)
    parts = []
    for first, last in pairwise(bounds):
        at = torch.arange(last - first)
        seen = (at <= at[:, None]) | (not settings["causal"])
        seen &= (at > at[:, None] - 3) | (kind != "window")
        q, k, v = (each[first:last].transpose(0, 1) for each in given)
        alone = torchs_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        parts.append(alone.transpose(0, 1))
    expected = torch.cat(parts)
    torch.testing.assert_close(out, expected)
    check_gradients(out, expected, given)


def test_no_tokens_are_attention_of_nothing():
    given = [draw(0, heads, 8) for heads in (4, 2, 2)]
    out = ops.varlen_attention(*given, torch.zeros(3, dtype=torch.int32))
    assert out.shape == (0, 4, 8)


@pytest.mark.parametrize("tokens", [0, 1, 30])
@pytest.mark.parametrize("ids", [None, [3, 1], [2, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_experts_are_applied_to_their_tokens(tokens, ids, dtype):
    given = experts(tokens, ids, dtype, grad=True)
    out, expected = ops.moe(*given), plain_experts(*given)
    assert out.dtype is dtype
    torch.testing.assert_close(out, expected)
    check_gradients(out, expected, given[:3])
    with torch.no_grad():
        torch.testing.assert_close(ops.moe(*given), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_layers_of_experts_and_packed_sequences_are_traced(grad):
    torch.compiler.reset()

    def layer(x, gate_up, down, weights, ids, cu_seqlens):
        q = x.view(-1, 2, 4)
        y = ops.varlen_attention(q, q, q, cu_seqlens, causal=True).flatten(1)
        return ops.moe(y, gate_up, down, weights, ids)

    given = *experts(9, grad=grad), torch.tensor([0, 4, 9], dtype=torch.int32)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    out, expected = traced(*given), layer(*given)
    torch.testing.assert_close(out, expected)
    if grad:
        check_gradients(out, expected, given[:3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.linear(draw(2, 3), draw(4, 3), activation="gleu"), "activation is 'gleu'"),
        (lambda: ops.activation(draw(2, 3), "mish"), "function is 'mish'"),
        (lambda: ops.varlen_attention(*(draw(2, 1, 8),) * 3, IDS, window=3), "window is 3, with"),
        (lambda: ops.quantize(draw(2, 3), torch.int16), "torch.int16"),
    ],
)
def test_what_no_operator_takes_is_named_in_one_line(call, message):
    with pytest.raises(tuner.TunerError, match=message) as caught:
        call()
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "matmul", "linear", "conv2d"])
def test_bad_shapes_fail_as_in_torch(name):
    ours, _, shapes = COUNTERPARTS[name]
    with pytest.raises(RuntimeError):
        ours(draw(2, 3), *(draw(7, 7) for _ in shapes[1:]))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ops.softmax(draw(2, 3), dim=5), IndexError),
        (lambda: ops.embedding(torch.tensor([0, 5]), draw(5, 7)), IndexError),
        (lambda: ops.cross_entropy(draw(2, 3), torch.tensor([0, 3])), IndexError),
        (lambda: ops.cross_entropy(draw(2, 3), torch.tensor([0, 1]), reduction="avg"), ValueError),
    ],
)
def test_numbers_out_of_range_fail_as_in_torch(call, error):
    with pytest.raises(error):
        call()


# -- as torch sees them ----------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_registered_as_torch_demands(name):
    operator, given = getattr(torch.ops.tuner, name).default, ARGUMENTS[name]()
    if OPERATORS[name]._differentiated:
        given = [
            each.requires_grad_() if isinstance(each, torch.Tensor) and each.is_floating_point()
            and not name.endswith("backward") else each for each in given
        ]  # fmt: skip
    # torch multiplies the arguments of its checks, and float8 has no product.
    alone = {"test_utils": "test_faketensor"} if name == "scaled_matmul" else {}
    torch.library.opcheck(operator, given, **alone)


@pytest.mark.parametrize("name", [each for each in OPERATORS if OPERATORS[each]._differentiated])
def test_gradients_in_graphs_are_as_exact_as_those_of_torch(name):
    """Of bfloat16, against float64: results that are rounded must not decide the gradient."""
    op, reference = getattr(torch.ops.tuner, name).default, OPERATORS[name].reference

    def is_float(each):
        return isinstance(each, torch.Tensor) and each.is_floating_point()

    def results(function, dtype):
        torch.manual_seed(0)
        given = [
            each.to(dtype).requires_grad_() if is_float(each) else each
            for each in ARGUMENTS[name]()
        ]
        return results_of(function(*given)), [each for each in given if is_float(each)]

    out, needed = results(op, torch.bfloat16)
    pulls = [torch.rand_like(each.float()) + 1 for each in out if each.requires_grad]
    at = [index for index, each in enumerate(out) if each.requires_grad]

    def gradients(out, needed):
        out = [out[index] for index in at]
        cast = [pull.to(each.dtype) for pull, each in zip(pulls, out, strict=True)]
        return torch.autograd.grad(out, needed, cast, allow_unused=True)

    ours = gradients(out, needed)
    torchs = gradients(*results(reference, torch.bfloat16))
    exact = gradients(*results(reference, torch.float64))
    assert ours[0] is not None
    for one, other, wide in zip(ours, torchs, exact, strict=True):
        if one is not None:
            error, allowed = ((each.double() - wide).norm() for each in (one, other))
            assert error <= 2 * allowed + 4e-3 * wide.norm()


def test_the_gradient_of_a_large_loss_in_a_graph_is_exact():
    """A loss of 10 in bfloat16 is off by up to 0.03, and its probability by as many percent."""
    torch.manual_seed(0)
    x, target = 3 * torch.randn(16, 512), torch.arange(16)
    exact, given = x.bfloat16().double().requires_grad_(), x.bfloat16().requires_grad_()
    (found,) = torch.autograd.grad(torch.ops.tuner.cross_entropy(given, target)[0].sum(), given)
    (wide,) = torch.autograd.grad(functional.cross_entropy(exact, target, reduction="sum"), exact)
    assert (found.double() - wide).norm() <= 4e-3 * wide.norm()


def test_angles_have_gradients():
    q, k, *angles, interleaved = ARGUMENTS["rotary"]()
    needed = [each.requires_grad_() for each in angles]
    out = ops.rotary(q, k, *needed, interleaved=interleaved)
    assert all(each is not None for each in torch.autograd.grad(sum(map(torch.sum, out)), needed))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_module_is_exported():
    class Block(torch.nn.Module):
        def forward(self, x, w, m, b):
            return block(x, w, m, b)

    given = draw(5, 8), draw(8), draw(8, 8), draw(8)
    program = torch.export.export(Block(), given)
    assert "tuner.rms_norm" in f"{program.graph}"
    torch.testing.assert_close(program.module()(*given), plain_block(*given))


def test_transforms_of_functions_see_torch():
    x, w = draw(3, 4, 8), draw(8)
    torch.testing.assert_close(torch.vmap(lambda each: our_rms(each, w))(x), rms(x, w))
    slope = torch.func.grad(lambda each: ops.softmax(each).square().sum())(x)
    torch.testing.assert_close(
        slope, torch.func.grad(lambda each: each.softmax(-1).square().sum())(x)
    )


def test_second_derivatives_exist():
    given = draw(3, 4, dtype=torch.float64, grad=True), draw(4, dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(our_rms, given)
    assert torch.autograd.gradgradcheck(our_rms, given)


def test_tensor_subclasses_keep_their_meaning():
    class Tagged(torch.Tensor):
        pass

    found = ops.softmax(draw(3, 4).as_subclass(Tagged))
    assert type(found) is Tagged


def test_the_report_names_what_ran():
    ops.softmax(draw(3, 11))
    (use,) = [use for use in ops.report() if use.operator == "softmax" and use.calls][:1]
    assert use.implementation == "eager"
    assert "no kernel runs on cpu" in use.reason
    assert "softmax" in str(ops.report())


def test_an_import_of_the_operators_loads_no_compiler():
    heavy = "('torch._dynamo', 'ray', 'optuna', 'plotly', 'pandas')"
    code = f"import sys, tuner.ops; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
