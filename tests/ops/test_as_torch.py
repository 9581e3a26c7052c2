"""Operators are torch's functions in signature, dtype, errors, layouts, and numbers of graphs."""

from __future__ import annotations

import inspect

import pytest
import torch
from operator_calls import results_of
from operator_cases import CASES
from operator_cases.case import draw
from operator_cases.rows import rms
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tuner import ops

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)


# -- signatures and errors -------------------------------------------------------------------------
SIGNATURES = {name: case.signature for name, case in CASES.items() if case.signature}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_torch(name):
    ours, torchs = inspect.signature(getattr(ops, name)).parameters, SIGNATURES[name]
    if isinstance(torchs, str):
        assert [*ours][: len(torchs.split())] == torchs.split()
    else:
        assert [(each.name, each.default) for each in ours.values()] == [
            (each.name, each.default) for each in inspect.signature(torchs).parameters.values()
        ]


X, W, FOUR = draw(4, 6), draw(5, 6), torch.tensor([0, 1, -100, 4])
LINEAR_LOSS = lambda x, w, t, **more: functional.cross_entropy(x @ w.T, t, **more)  # noqa: E731
Q = draw(1, 4, 3, 8)
#: The name of an operator, torch's function, arguments and keywords; of which torch refuses all.
REFUSED = [
    ("layer_norm", functional.layer_norm, (X, (4, 6), draw(6, 4), draw(6, 4)), {}),
    ("layer_norm", functional.layer_norm, (X, 6, draw(6), draw(6)), {}),
    ("rms_norm", functional.rms_norm, (X, (4, 6), draw(6, 4), 1e-5), {}),
    ("rms_norm", functional.rms_norm, (X, (5,), draw(5), 1e-5), {}),
    ("fused_linear_cross_entropy", LINEAR_LOSS, (X, W, FOUR[:1]), {}),
    ("fused_linear_cross_entropy", LINEAR_LOSS, (X, W, FOUR[:3]), {}),
    ("fused_linear_cross_entropy", LINEAR_LOSS, (X, W, FOUR + 1), {"ignore_index": -99}),
    ("fused_linear_cross_entropy", LINEAR_LOSS, (X, W, FOUR), {"reduction": "avg"}),
    ("cross_entropy", functional.cross_entropy, (X, FOUR + 2), {"ignore_index": -98}),
    ("cross_entropy", functional.cross_entropy, (X, FOUR[:1]), {}),
    ("cross_entropy", functional.cross_entropy, (X, FOUR.int()), {}),
    ("cross_entropy", functional.cross_entropy, (X, FOUR), {"reduction": "avg"}),
    ("embedding", functional.embedding, (torch.tensor([5]), W), {}),
    ("group_norm", functional.group_norm, (draw(1, 4, 1), 4, draw(4), draw(4)), {}),
    ("group_norm", functional.group_norm, (draw(2, 4, 3), 0, draw(4), draw(4)), {}),
    ("matmul", torch.matmul, (X, W), {}),
    ("matmul", torch.matmul, (X, draw(6, 2).bfloat16()), {}),
    ("conv2d", functional.conv2d, (draw(1, 2, 4, 4), draw(2, 2, 3, 3)), {"stride": 0}),
    ("attention", functional.scaled_dot_product_attention, (Q, *[Q[:, :2]] * 2), {}),
    ("softmax", torch.softmax, (X, 5), {}),
    ("softmax", torch.softmax, (X.long(), -1), {}),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[each[0] for each in REFUSED])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_torch_refuses_is_refused_with_its_error(case, compiled):
    name, torchs, given, named = case
    with pytest.raises(Exception) as expected:  # noqa: PT011
        torchs(*given, **named)
    if not compiled:
        with pytest.raises(expected.type):
            getattr(ops, name)(*given, **named)
    elif expected.type is not IndexError:  # a graph reads no numbers before it runs
        torch.compiler.reset()
        with pytest.raises(Exception):  # noqa: B017, PT011
            torch.compile(getattr(ops, name), backend="aot_eager", fullgraph=True)(*given, **named)


def test_empty_matrices_have_codes():
    for shape in ((0, 8), (3, 0), (0, 0)):
        for scales, size in (("row", shape[0]), ("tensor", 1), ("block128", None)):
            codes, scale = ops.quantize(torch.zeros(shape), torch.int8, scales)
            assert codes.shape == shape
            assert size in (None, scale.numel())
            assert bool((scale > 0).all())
    weight, scale = ops.quantize(draw(16, 32))
    assert ops.fp8_linear(torch.zeros(2, 0, 32), weight, scale).shape == (2, 0, 16)
    assert ops.fp8_linear(torch.zeros(3, 0), *ops.quantize(torch.zeros(5, 0))).shape == (3, 5)


@pytest.mark.parametrize("scales", ["row", "block128", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_codes_keep_what_is_no_number(scales, dtype):
    x = draw(2, 300)
    x[1, 3] = float("nan")
    codes, scale = ops.quantize(x, dtype, scales)
    spread = scale.repeat_interleave(128, 1)[:, :300] if scales == "block128" else scale[:, None]
    values = codes.float() * spread
    assert values[1, 3].isnan()
    assert bool(values[0].isfinite().all()) is (scales != "tensor")


# -- dtypes under autocast -------------------------------------------------------------------------
AUTOCAST = {
    name: case.autocast or next(iter(case.counterparts.values()))
    for name, case in CASES.items()
    if case.autocast or case.counterparts
}


@pytest.mark.parametrize("name", AUTOCAST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_autocast_gives_the_dtype_of_torch(name, dtype, device):
    *functions, shapes = AUTOCAST[name]
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        with FakeTensorMode():
            given = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
            found, expected = ([each.dtype for each in results_of(f(*given))] for f in functions)
    finally:
        torch.set_autocast_enabled(device, False)
    assert found == expected


# -- kinds of tensors ------------------------------------------------------------------------------
def test_nested_sparse_and_mkldnn_tensors_are_given_to_torch():
    nested = torch.nested.nested_tensor([draw(2, 6), draw(3, 6)])
    w = draw(6)
    torch.testing.assert_close(ops.softmax(nested)[1], torch.softmax(nested, -1)[1])
    found = ops.layer_norm(nested, (6,), w, w)
    torch.testing.assert_close(found[1], functional.layer_norm(nested, (6,), w, w)[1])
    jagged = torch.nested.nested_tensor([draw(2, 6), draw(3, 6)], layout=torch.jagged)
    torch.testing.assert_close(ops.linear(jagged, W).values(), jagged.values() @ W.T)
    torch.testing.assert_close(ops.matmul(X.to_sparse(), W.T), X @ W.T)
    torch.testing.assert_close(ops.softmax(X.to_mkldnn()).to_dense(), X.softmax(-1))


def test_a_symbolic_trace_keeps_operators():
    def net(x, w, m):
        y = ops.softmax(ops.linear(ops.rms_norm(x, (6,), w, eps=1e-5), m, activation="gelu"))
        weights, _ = ops.topk_routing(y, 2)
        return ops.swiglu(ops.add_rms_norm(x, x, w)[0]), weights

    graph = torch.fx.symbolic_trace(net)
    given = X, draw(6), W
    for one, other in zip(graph(*given), net(*given), strict=True):
        torch.testing.assert_close(one, other)
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert ops.rms_norm in called


@pytest.mark.parametrize("transform", ["jvp", "vmap", "grad", "dual"])
@pytest.mark.parametrize("compiled", [False, True])
def test_transforms_are_those_of_torch(transform, compiled):
    x, v, w, t = draw(3, 4, 6), draw(3, 4, 6), draw(6), torch.tensor([0, 5, 3])
    calls = [
        (lambda x: ops.softmax(x), lambda x: x.softmax(-1)),
        (lambda x: ops.rms_norm(x, (6,), w, 1e-5), lambda x: rms(x, w)),
        (lambda x: ops.add_rms_norm(x, x, w)[0], lambda x: rms(x + x, w)),
        (lambda x: ops.matmul(x, W.T), lambda x: x @ W.T),
        (lambda x: ops.activation(x, "silu"), functional.silu),
        (lambda x: ops.topk_routing(x, 2)[0], lambda x: x.softmax(-1).topk(2)[0]),
        (
            lambda x: ops.cross_entropy(x.reshape(-1, 6)[:3], t),
            lambda x: functional.cross_entropy(x.reshape(-1, 6)[:3], t),
        ),
    ]

    def dual(f):
        with torch.autograd.forward_ad.dual_level():
            out = f(torch.autograd.forward_ad.make_dual(x, v))
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    apply = {
        "jvp": lambda f: torch.func.jvp(f, (x,), (v,))[1],
        "vmap": lambda f: torch.vmap(f)(x),
        "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum())(x),
        "dual": dual,
    }[transform]
    if compiled and transform == "dual":
        pytest.skip("dynamo breaks at dual levels")
    for ours, torchs in calls:
        run = torch.compile(apply, backend="aot_eager") if compiled else apply
        torch.testing.assert_close(run(ours), apply(torchs))


# -- numbers of graphs -----------------------------------------------------------------------------
GRAPHS = {name: each for case in CASES.values() for name, each in case.graphs.items()}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_graph_of_any_number_of_rows_follows_the_first(name, grad):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    call = torch.compile(GRAPHS[name], backend=counter, fullgraph=True)
    graphs = []
    for rows in (8, 9, 33, 64):
        x = draw(rows, 32, grad=grad)
        found, expected = results_of(call(x)), results_of(GRAPHS[name](x))
        graphs.append(counter.frame_count)
        for one, other in zip(found, expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            torch.testing.assert_close(one.float(), other.float())
        slopes = [
            torch.autograd.grad([each.float().sum() for each in out if each.requires_grad], x)[0]
            for out in (found, expected)
            if any(each.requires_grad for each in out)
        ]
        if slopes:
            torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)
    # torch's own convolution chooses an algorithm by the number of images, which is another graph.
    assert graphs in ([1, 2, 2, 2], [1, 2, 3, 3] if name == "conv2d" and grad else ())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("value", [float("-inf"), -1e9])
def test_a_logit_without_a_share_does_not_spoil_gradients(value, compiled):
    torch.compiler.reset()
    x, target = draw(6, 9), torch.tensor([1, 2, -100, 3, -100, 5])
    x[:, 0], x[3, 3] = value, value
    loss = torch.compile(ops.cross_entropy, backend="aot_eager") if compiled else ops.cross_entropy
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found = torch.autograd.grad(loss(given, target, reduction="sum"), given)[0]
    expected = torch.autograd.grad(functional.cross_entropy(exact, target, reduction="sum"), exact)
    torch.testing.assert_close(found.double(), expected[0], rtol=1e-5, atol=1e-6)
