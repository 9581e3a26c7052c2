"""Gradients of operators whose kernels run in Triton's interpreter; `test_interpreted.py` runs this
file. Shipped tables decide, however far their entries are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_calls import write_defaults
from operator_cases.elements import gated
from torch.nn import functional

from search_spaces import registry
from search_spaces.records import Workload
from tuner import ops, runtime
from tuner.ops import linear_losses, strided_rotary
from tuner.ops.operator import OPERATORS
from tuner.ops.reduced_losses import REDUCTIONS

#: NumPy, by which the interpreter computes, warns of a mean of no numbers.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _every_entry_serves():
    torch.manual_seed(0)
    with ops.prefer_tuned():
        yield


def near(found, exact, bound=2e-5):
    """Within an error of the exact tensor's norm, and of what rounding leaves of zero."""
    assert (found.double() - exact.double()).norm() <= bound * (exact.double().norm() + 1e-3)


def check(ours, torchs, given, bound=2e-5):
    """Result and gradients of a function of tensors, twice from one graph, against float64."""
    wide = [each.detach().double().requires_grad_(each.requires_grad) for each in given]
    out, exact = ours(*given), torchs(*wide)
    near(out, exact, bound)
    assert out.dtype == given[0].dtype
    for _ in range(2):
        pull = (torch.rand_like(exact) + 0.5).to(out.dtype)
        needed = [
            [each for each in tensors if each.requires_grad] for tensors in (tuple(given), wide)
        ]
        found = torch.autograd.grad(out, needed[0], pull, retain_graph=True)
        wanted = torch.autograd.grad(exact, needed[1], pull.double(), retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            near(one, other, bound)


def kept_bytes(call):
    """Bytes that a forward pass saves for the backward one."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call()
    assert out.requires_grad
    return sum(kept.values())


def targets(rows, classes, ignored):
    found = torch.randint(classes, (rows,))
    found[0] = classes - 1
    return torch.where(torch.rand(rows) < 0.3, ignored, found)


SIZES = st.tuples(st.integers(1, 9), st.sampled_from([2, 7, 64, 509, 1000]))


@settings(max_examples=25, deadline=None)
@given(SIZES, st.sampled_from(REDUCTIONS),
       st.sampled_from([-100, 1]))  # fmt: skip
def test_losses_have_the_gradient_of_torch(size, reduction, ignored):
    x, target = (2 * torch.randn(*size)).requires_grad_(), targets(*size, ignored)
    more = {"ignore_index": ignored, "reduction": reduction}
    if reduction == "mean" and bool((target == ignored).all()):
        assert ops.cross_entropy(x, target, **more).isnan()
        return
    check(
        lambda x: ops.cross_entropy(x, target, **more),
        lambda x: functional.cross_entropy(x, target, **more),
        [x],
    )


@settings(max_examples=6, deadline=None)
@given(SIZES, st.sampled_from(["mean", "sum"]), st.sampled_from([(1, 1), (1, 0), (0, 1)]),
       st.sampled_from([1, 130]))  # fmt: skip
def test_the_gradients_of_linear_losses_are_those_of_torch(size, reduction, needed, rows):
    rows, classes = max(rows, size[0]), size[1]
    linear_losses._CHUNK_BYTES = 4 * classes * 128  # chunks of 128 tokens
    target = targets(rows, classes, -100)
    target[0] = 0
    hidden = torch.randn(rows, 8, requires_grad=bool(needed[0]))
    weight = torch.randn(classes, 8, requires_grad=bool(needed[1]))
    check(
        lambda h, w: ops.fused_linear_cross_entropy(h, w, target, reduction=reduction),
        lambda h, w: functional.cross_entropy(h @ w.T, target, reduction=reduction),
        [hidden, weight],
    )


@pytest.mark.parametrize("loss", ["logits", "linear"])
def test_losses_have_second_derivatives(loss):
    x, w, target = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4), torch.tensor([0, 4, 2])
    calls = {
        "logits": (ops.cross_entropy, lambda f: f(x @ w.T, target)),
        "linear": (ops.fused_linear_cross_entropy, lambda f: f(x, w, target)),
    }
    ours, call = calls[loss]
    plain = functional.cross_entropy(x @ w.T, target)
    found = []
    for out in (call(ours), plain):
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    torch.testing.assert_close(*found)


def test_a_target_that_is_no_class_fails():
    x, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 4, 2])
    with pytest.raises(IndexError):
        ops.cross_entropy(x, target)


def test_no_more_is_saved_than_by_torch():
    x, w, target = torch.randn(64, 500), torch.randn(500, 16), targets(64, 500, -100)
    leaf, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    hidden = torch.randn(64, 16, requires_grad=True)
    pairs = [
        (lambda: ops.cross_entropy(leaf, target), lambda: functional.cross_entropy(leaf, target)),
        (
            lambda: ops.fused_linear_cross_entropy(hidden, weight, target),
            lambda: functional.cross_entropy(functional.linear(hidden, weight), target),
        ),
    ]
    wide = torch.randn(64, 16, requires_grad=True)
    norm = torch.ones(16, requires_grad=True)
    pairs += [
        (lambda: ops.swiglu(wide), lambda: gated(wide)),
        (
            lambda: ops.linear(hidden, weight, None, "swiglu"),
            lambda: gated(functional.linear(hidden, weight)),
        ),
        (lambda: ops.activation(wide, "gelu"), lambda: functional.gelu(wide)),
        (
            lambda: ops.rms_norm(wide, (16,), norm, 1e-5),
            lambda: functional.rms_norm(wide, (16,), norm, 1e-5),
        ),
        (
            lambda: ops.layer_norm(wide, (16,), norm, norm),
            lambda: functional.layer_norm(wide, (16,), norm, norm),
        ),
        (lambda: ops.softmax(wide), lambda: wide.softmax(-1)),
    ]
    for ours, torchs in pairs:
        assert kept_bytes(ours) <= 1.02 * kept_bytes(torchs)


FUNCTIONS = ["gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh", "swiglu", "geglu"]


@pytest.fixture(scope="module")
def backward_tables(tmp_path_factory):
    """Tables of the default configs of `activation_backward` and `rotary`."""
    folder, rotary = tmp_path_factory.mktemp("tables"), registry.load("rotary")
    dims = {"tokens": 11, "q_heads": 3, "k_heads": 2, "head_dim": 64, "dtype": "float32"}
    both = [Workload.of(**dims, interleaved=each) for each in (False, True)]
    write_defaults(folder, rotary, both)
    kernel = registry.load("activation_backward")
    write_defaults(
        folder,
        kernel,
        [Workload.of(rows=5, cols=333, function=name, dtype="float32") for name in FUNCTIONS],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_TABLES", str(folder))
        runtime.clear()
        yield
    runtime.clear()


@pytest.mark.usefixtures("backward_tables")
@settings(max_examples=20, deadline=None)
@given(SIZES, st.sampled_from(FUNCTIONS))
def test_activations_have_the_gradient_of_torch(size, function):
    x = (3 * torch.randn(2, size[0], 2 * size[1])).requires_grad_()
    reference = OPERATORS["activation"].reference
    check(lambda x: ops.activation(x, function), lambda x: reference(x, function), [x])


@pytest.mark.usefixtures("backward_tables")
@pytest.mark.parametrize("activation", ["none", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers_have_the_gradient_of_torch(activation, biased):
    x, w, b = torch.randn(5, 2, 8), torch.randn(12, 8), torch.randn(12)
    given = [each.requires_grad_() for each in ([x, w, b] if biased else [x, w])]
    reference = OPERATORS["linear"].reference
    check(
        lambda x, w, b=None: ops.linear(x, w, b, activation),
        lambda x, w, b=None: reference(x, w, b, activation),
        given,
    )
    ran = {use.operator for use in ops.report() if use.implementation == "tuned"}
    assert activation == "none" or {"activation", "activation_backward"} <= ran


NORMS = {
    "rms_norm": (
        lambda x, w, b: ops.rms_norm(x, w.shape, w, 1e-5),
        lambda x, w, b: functional.rms_norm(x, w.shape, w, 1e-5),
    ),
    "layer_norm": (
        lambda x, w, b: ops.layer_norm(x, w.shape, w, b),
        lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
    ),
    "add_rms_norm": (
        lambda x, w, b: sum(ops.add_rms_norm(x, x, w)),
        lambda x, w, b: functional.rms_norm(x + x, w.shape, w, 1e-5) + x + x,
    ),
}


@pytest.mark.parametrize("name", NORMS)
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 9), st.sampled_from([3, 64, 509, 2500]), st.sampled_from([0.0, 30.0]))
def test_normalisations_have_the_gradient_of_torch(name, rows, cols, mean):
    needed = 3 if name == "layer_norm" else 2
    given = [torch.randn(rows, 2, cols) + mean, torch.randn(cols), torch.randn(cols)]
    for each in given[:needed]:
        each.requires_grad_()
    check(*NORMS[name], given, 5e-4 if mean else 2e-5)


def test_groups_of_channels_have_the_gradient_of_torch():
    for shape, groups in (((2, 8, 5, 7), 4), ((3, 6, 600), 2), ((1, 4, 3), 1)):
        channels = shape[1]
        given = [torch.randn(*shape), torch.randn(channels), torch.randn(channels)]
        check(
            lambda x, w, b, groups=groups: ops.group_norm(x, groups, w, b),
            lambda x, w, b, groups=groups: functional.group_norm(x, groups, w, b),
            [each.requires_grad_() for each in given],
        )
    (slope,) = torch.autograd.grad(
        ops.group_norm(given[0], 1, *given[1:]).square().sum(), given[0], create_graph=True
    )
    assert torch.autograd.grad(slope.square().sum(), given[0])[0].isfinite().all()


STRIDED = {
    "softmax": (ops.softmax, lambda x: x.softmax(-1)),
    "rms_norm": (
        lambda x: ops.rms_norm(x, (64,), torch.ones(64, dtype=x.dtype), 1e-5),
        lambda x: functional.rms_norm(x, (64,), eps=1e-5),
    ),
    "layer_norm": (
        lambda x: ops.layer_norm(x, (64,), x.new_ones(64), x.new_zeros(64)),
        lambda x: functional.layer_norm(x, (64,)),
    ),
}


@pytest.mark.parametrize("name", STRIDED)
def test_chunks_of_rows_reach_kernels(name):
    ours, torchs = STRIDED[name]
    whole = torch.randn(3, 2, 140, requires_grad=True)
    for first in (0, 5, 70):
        check(
            lambda x, first=first: ours(x[..., first : first + 64]),
            lambda x, first=first: torchs(x[..., first : first + 64]),
            [whole],
        )
    ran = [use for use in ops.report() if use.operator == name and use.implementation == "tuned"]
    assert any("rows=6" in use.workload for use in ran)


@pytest.mark.usefixtures("backward_tables")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", ["transposed", "merged", "sliced angles", "transposed gradients"])
def test_heads_are_rotated_wherever_they_are(kind, interleaved, monkeypatch):
    launched = []
    launch = strided_rotary._rotate

    def count(*arguments):
        launched.append(launch(*arguments))
        return launched[-1]

    monkeypatch.setattr(strided_rotary, "_rotate", count)
    q, k, angles = torch.randn(11, 3, 64), torch.randn(11, 2, 64), 3 * torch.randn(11, 64)
    cos, sin = (each[:, :32] for each in (angles.cos(), angles.sin()))
    if kind != "sliced angles":
        cos, sin = cos.contiguous(), sin.contiguous()
    if kind == "transposed":
        q, k = (each.transpose(0, 1).contiguous().transpose(0, 1) for each in (q, k))
    if kind == "merged":
        q, k = torch.cat([q, k], 1).split([3, 2], 1)
    turn = (lambda x: x.transpose(0, 1)) if kind == "transposed gradients" else (lambda x: x)
    pull = [torch.randn(turn(each).shape) for each in (q, k)]
    found = []
    for rotate in (partial(ops.rotary, interleaved=interleaved),
                   lambda *g: OPERATORS["rotary"].reference(*g, interleaved)):  # fmt: skip
        given = [each.detach().requires_grad_() for each in (q, k)]
        out = rotate(*given, cos, sin)
        found.append([*out, *torch.autograd.grad([turn(each) for each in out], given, pull)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert launched == [True] * (1 if kind == "transposed gradients" else 2)


def test_shares_of_a_scaled_loss_in_float16_do_not_vanish():
    hidden, weight = torch.randn(40, 8).half(), (torch.randn(5000, 8) / 9).half()
    target = torch.zeros(40, dtype=torch.int64)
    found = []
    plain = lambda h, w, t: functional.cross_entropy(h @ w.T, t)  # noqa: E731
    for loss, dtype in ((ops.fused_linear_cross_entropy, torch.float16), (plain, torch.float64)):
        given = [each.to(dtype).requires_grad_() for each in (hidden, weight)]
        scaled = loss(*given, target) * 2**16
        found.append([each.double() for each in torch.autograd.grad(scaled, given)])
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
    others = [each[1][1:] for each in found]  # of classes that are no target
    assert (others[0] - others[1]).norm() <= 0.02 * others[1].norm()
