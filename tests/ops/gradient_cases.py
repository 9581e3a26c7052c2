"""Gradients of operators by kernels in Triton's interpreter; `test_interpreted.py` runs this file.

Every kernel runs its default config.
"""

from __future__ import annotations

import pytest
import torch
from edge_samples import run_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trained import TRAINED, tensors_of, train, widen

from tuner import ops
from tuner.ops import group_gradients, linear_losses, strided_rotary

#: NumPy, by which the interpreter computes, warns of what overflows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
run_kernels()
#: Chunks of linear losses have 128 tokens.
linear_losses._CHUNK_BYTES = 1
#: Groups are few.
group_gradients._FEWEST = 1


def near(found, exact, bound=3e-5):
    """Within an error of the exact tensor's norm, and of what rounding leaves of zero."""
    assert (found.double() - exact.double()).norm() <= bound * (exact.double().norm() + 1e-2)


@pytest.mark.parametrize("name", TRAINED)
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 9), st.sampled_from([8, 64, 510, 2500]), st.integers(0, 99))
def test_results_and_gradients_are_those_of_torch(name, rows, cols, seed):
    torch.manual_seed(seed)
    given = tensors_of(name, rows, cols)
    ours, torchs, _ = TRAINED[name]
    found, exact = train(ours, given, 3.0, times=2), train(torchs, widen(given), 3.0, times=2)
    for one, other in zip(found, exact, strict=True):
        near(one, other)
        assert one.dtype == given[0].dtype


@pytest.mark.parametrize("name", TRAINED)
def test_second_derivatives_are_those_of_torch(name):
    ours, torchs, _ = TRAINED[name]
    given, found = tensors_of(name, 3, 8), []
    for function in (ours, torchs):
        (slope,) = torch.autograd.grad(function(*given).sin().sum(), given[0], create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), given[0])[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_no_more_is_saved_than_by_torch(name):
    given = tensors_of(name, 64, 512)

    def kept_bytes(function):
        kept = {}

        def pack(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(*given)
        return sum(kept.values())

    ours, torchs, _ = TRAINED[name]
    assert kept_bytes(ours) <= 1.02 * kept_bytes(torchs)


def test_chunks_of_tokens_give_the_gradients_of_all():
    for needed in ((True, True), (True, False), (False, True)):
        given = tensors_of("linear loss mean", 150, 8)
        for each, need in zip(given, needed, strict=False):
            each.requires_grad_(need)
        ours, torchs, _ = TRAINED["linear loss mean"]
        for one, other in zip(train(ours, given), train(torchs, widen(given)), strict=True):
            near(one, other)


def test_shares_of_a_scaled_loss_in_float16_do_not_vanish():
    hidden, weight = torch.randn(40, 8).half(), (torch.randn(5000, 8) / 9).half()
    target, found = torch.zeros(40, dtype=torch.int64), []
    plain = lambda h, w, t: functional.cross_entropy(h @ w.T, t)  # noqa: E731
    for loss, dtype in ((ops.fused_linear_cross_entropy, torch.float16), (plain, torch.float64)):
        given = [each.to(dtype).requires_grad_() for each in (hidden, weight)]
        of_hidden, of_weight = torch.autograd.grad(loss(*given, target) * 2**16, given)
        found.append([of_hidden, of_weight[1:]])  # without the class that is the target
    for one, other in zip(*found, strict=True):
        near(one, other, 0.02)


def test_a_mean_of_no_rows_is_no_number():
    x, target = torch.randn(3, 4, requires_grad=True), torch.full((3,), -100)
    assert ops.cross_entropy(x, target).isnan()
    assert ops.fused_linear_cross_entropy(x, torch.randn(5, 4), target).isnan()


@pytest.mark.parametrize(
    ("module", "name", "case", "times"),
    [(strided_rotary, "_rotate", "heads, False", 2),
     (group_gradients, "_launch", "group_norm of images", 1)],
)  # fmt: skip
def test_launches_of_their_own_are_few(monkeypatch, module, name, case, times):
    launched, launch = [], getattr(module, name)
    monkeypatch.setattr(
        module, name, lambda *given: launched.append(launch(*given)) or launched[-1]
    )
    train(TRAINED[case][0], tensors_of(case, 5, 64))
    assert launched == [True] * times


def test_kernels_ran():
    ran = {use.operator for use in ops.report() if use.implementation == "tuned"}
    assert {"activation_backward", "cross_entropy_backward", "norm_backward", "group_norm"} <= ran
