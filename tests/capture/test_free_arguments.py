"""Arguments of captured calls by what they do: free ones leave the workload."""

from __future__ import annotations

import pytest
import torch
import triton
from capture_calls import captured

from search_spaces.errors import KernelError


@pytest.fixture
def kernels(interpreted):
    return interpreted("free_kernels")


def blocks(meta):
    return (triton.cdiv(100, meta["BLOCK"]),)


def adam(kernels, step=10, lr=1e-3, grid=blocks):
    p, g, m = (torch.randn(100) for _ in range(3))
    kernels.adam[grid](p, g, m, lr, 0.9, step, 100)


def many(kernels, seed=7, scale=2.0, grid=blocks):
    x, out = torch.randn(400), torch.empty(100)
    kernels.many[grid](x, out, 100, 3, 5, seed, 0.1, scale, 0.5, 90, BLOCK=64)


def test_masks_strides_loops_and_branches_are_not_free(kernels):
    kernel = captured(many, kernels)["many"].declare()
    assert {*kernel.free} == {"seed", "scale", "shift"}
    (workload,) = kernel.workloads()
    assert workload.as_dict() == {
        "x": "float32[400]", "out": "float32[100]", "BLOCK": 64,
        "n": 100, "stride": 3, "turns": 5, "lr": 0.1, "width": 90,
    }  # fmt: skip


def test_calls_that_differ_in_free_arguments_are_one(kernels):
    def launch():
        for step in (1, 2, 3):
            adam(kernels, step, lr=step * 1e-3)

    calls = captured(launch)
    kernel = calls["adam"].declare()
    assert (len(calls), len(kernel.workloads()), kernel.free) == (3, 1, ("lr", "beta", "step"))
    assert "lr, beta, step" in repr(calls)
    assert "lr, beta, step" in repr(calls["adam"])


def test_a_constant_that_is_compiled_in_decides_what_is_free(kernels):
    def launch():
        for kind in (3, 2):
            kernels.shifted[(1,)](torch.randn(64), torch.empty(100), 6, KIND=kind, BLOCK=64)

    calls = captured(launch)
    assert [calls[at].declare().free for at in range(2)] == [("scale",), ()]


def test_a_grid_that_depends_on_a_scalar_keeps_it(kernels):
    def by_step(meta):
        return (triton.cdiv(100, meta["BLOCK"]) + meta["step"] - 10,)

    for grid, free in ((by_step, ("lr", "beta")), ((2,), ("lr", "beta", "step"))):
        assert captured(adam, kernels, grid=grid)["adam"].declare().free == free


def test_the_sorting_can_be_corrected(kernels):
    calls = captured(many, kernels)["many"]
    corrected = calls.declare(free=["lr"], sizes=["seed"])
    assert {*corrected.free} == {"lr", "scale", "shift"}
    for wrong in ({"free": ["lrr"]}, {"sizes": ["x"]}, {"free": ["n"], "sizes": ["n"]}):
        with pytest.raises(KernelError) as error:
            calls.declare(**wrong)
        assert "\n" not in error.value.message
        assert next(iter(wrong)) in error.value.message


def test_a_kernel_that_does_not_compile_has_no_free_arguments(kernels):
    x = torch.zeros(100)
    call = captured(kernels.interpreted_alone[(1,)], x, 2.0, BLOCK=64)["interpreted_alone"]
    assert call.declare().free == ()


def test_a_call_that_compiles_too_long_says_that_nothing_is_free(kernels, monkeypatch, caplog):
    monkeypatch.setattr("tuner.capturing.lowering._known", {})
    monkeypatch.setattr("tuner.capturing.lowering._TIMEOUT_S", 1e-3)
    assert captured(many, kernels)["many"].declare().free == ()
    (message,) = caplog.messages
    assert "many: no argument is called free: compiling it for cuda:90 failed (" in message
    assert "0.001 s" in message
