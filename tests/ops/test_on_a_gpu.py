"""Operators on a GPU: plans, gradients, graphs, compilation, streams and threads."""

from __future__ import annotations

import threading

import pytest
import torch
from operator_calls import block, plain_block
from torch.nn import functional

from tuner import ops
from tuner.ops import choosing
from tuner.ops.operator import OPERATORS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def every_entry_serves(monkeypatch):
    """Small problems are far from the entries of tables."""
    monkeypatch.setattr(choosing, "FARTHEST", 99.0)
    # `torch.compile` sets it for its own kernels; later tests build with Triton's assembler.
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    for operator in OPERATORS.values():
        operator.forget()
    torch.manual_seed(0)


def half(*sizes, grad=False):
    return torch.randn(sizes, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)


def near(one, other, bound=2e-2):
    one, other = one.double(), other.double()
    return (one - other).norm() <= bound * other.norm()


def arguments(grad=False):
    return half(96, 512, grad=grad), half(512, grad=grad), half(512, 512, grad=grad), half(512)


def test_tuned_kernels_run_and_are_right():
    given = arguments()
    assert near(block(*given), plain_block(*given))
    runs = {use.operator: use.implementation for use in ops.report()}
    assert {runs[name] for name in ("rms_norm", "softmax", "add_rms_norm")} == {"tuned"}


def test_a_plan_serves_other_tensors_and_equal_ones():
    w = half(512)
    one, other = half(64, 512), half(64, 512)
    for x, r in ((one, one), (one, other), (other, other)):  # the first is planned with one tensor
        y, total = ops.add_rms_norm(x, r, w)
        assert torch.equal(total, x + r)
        assert near(y, functional.rms_norm(total, (512,), w, 1e-5))


def test_a_misaligned_tensor_has_a_plan_of_its_own():
    whole = half(64 * 512 + 1)
    for x in (whole[:-1].view(64, 512), whole[1:].view(64, 512)):
        assert near(ops.softmax(x), x.softmax(-1))


def test_gradients_are_those_of_torch():
    given = arguments(grad=True)
    out = block(*given)
    expected = plain_block(*given)
    pull = torch.randn_like(out)
    needed = given[:3]
    for one, other in zip(
        torch.autograd.grad(out, needed, pull), torch.autograd.grad(expected, needed, pull),
        strict=True,
    ):  # fmt: skip
        assert near(one, other, 4e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_is_compiled_without_a_break(grad):
    torch.compiler.reset()
    given = arguments(grad=grad)
    compiled = torch.compile(block, fullgraph=True)
    out, expected = compiled(*given), plain_block(*given)
    assert near(out, expected)
    if grad:
        pull = torch.randn_like(out)
        for one, other in zip(
            torch.autograd.grad(out, given[:3], pull),
            torch.autograd.grad(expected, given[:3], pull),
            strict=True,
        ):
            assert near(one, other, 4e-2)


def test_a_cuda_graph_replays_warm_calls():
    given = arguments()
    ops.warm(block, *given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = block(*given)
    for _ in range(2):
        given[0].copy_(half(96, 512))
        graph.replay()
        assert near(out, plain_block(*given))


def test_a_call_inside_of_a_capture_compiles_nothing():
    x = half(33, 512)
    torch.softmax(x, -1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.softmax(x)
    graph.replay()
    assert near(out, x.softmax(-1))


def test_compilation_can_wait_for_warm(monkeypatch):
    monkeypatch.setenv("TUNER_OPS_COMPILE", "warm")
    x = half(40, 512)
    assert near(ops.softmax(x), x.softmax(-1))
    assert not [use for use in ops.report() if use.implementation == "tuned"]
    ops.warm(ops.softmax, x)
    ops.softmax(x)
    assert [use.calls for use in ops.report() if use.implementation == "tuned"] == [2]


def test_threads_and_streams():
    w = half(512)
    wrong = []

    def work(rows):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = half(rows, 512)
                if not near(ops.rms_norm(x, w, 1e-5), functional.rms_norm(x, (512,), w, 1e-5)):
                    wrong.append(rows)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(32 + at // 2,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two_devices():
    for index in (1, 0):
        x = half(64, 512).to(f"cuda:{index}")
        assert near(ops.softmax(x), x.softmax(-1))


def test_autocast_casts_as_torch_does():
    x, w = torch.randn(64, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert ops.matmul(x, w).dtype is torch.matmul(x, w).dtype is torch.bfloat16
        low = half(64, 512)
        assert ops.softmax(low).dtype is torch.softmax(low, -1).dtype is torch.float32
        assert near(ops.softmax(low), torch.softmax(low, -1), 1e-5)
