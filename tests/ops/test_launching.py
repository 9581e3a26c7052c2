"""The launcher of a compiled kernel passes what Triton's own passes; no GPU receives it here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler.compiler import CompiledKernel
from triton.runtime._allocation import NullAllocator

from tuner.ops.launching import bind

GRIDS = st.tuples(*[st.integers(1, 99)] * 3)
hooks = triton.knobs.runtime


@pytest.fixture(autouse=True)
def _never_unloaded(monkeypatch):
    monkeypatch.setattr(CompiledKernel, "__del__", lambda kernel: None, raising=False)


def compiled(received, **facts):
    """A loaded kernel whose C launcher lists what it receives, and calls the hooks."""

    def launch(*passed):
        received.append(passed)
        for each in passed:
            if isinstance(each, triton.knobs.HookChain):
                each({})

    launcher, kernel = object.__new__(CudaLauncher), object.__new__(CompiledKernel)
    usual = {
        "arg_annotations": ["kind"], "kernel_signature": b"O", "num_ctas": 1, "launch": launch,
        "global_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_size": 0,
        "profile_scratch_align": 1, "launch_cooperative_grid": False, "launch_pdl": True,
        "gsan_enabled": False,
    }  # fmt: skip
    launcher.__dict__.update(usual | facts)
    source = SimpleNamespace(fn=SimpleNamespace(launch_metadata=None))
    kernel.__dict__.update(module=1, function=7, packed_metadata=(4, 1, 0), name="k")
    kernel.__dict__.update(src=source, _run=launcher)
    return kernel


@given(GRIDS, st.integers(0, 2**63), st.lists(st.integers()))
def test_the_same_is_passed_as_by_triton(grid, stream, values):
    received = []
    kernel = compiled(received)
    bind(kernel)(grid, stream, tuple(values))
    with hooks.scope():
        hooks.launch_enter_hook = hooks.launch_exit_hook = None
        kernel[grid](*values, stream=stream)
    ours, own = received
    assert ours == own


@given(st.booleans(), GRIDS)
def test_hooks_are_called_while_they_are_set(enters, grid):
    calls = []
    launch = bind(compiled([]))
    chain = hooks.launch_enter_hook if enters else hooks.launch_exit_hook
    launch(grid, 0, (1,))
    chain.add(calls.append)
    try:
        launch(grid, 0, (1,))
    finally:
        chain.remove(calls.append)
    launch(grid, 0, (1,))
    assert len(calls) == 1


@pytest.mark.parametrize("version", [triton.__version__, "99.0"])
@pytest.mark.parametrize("size", [0, 64])
def test_a_launcher_that_does_more_runs_itself(size, version, monkeypatch):
    """It allocates scratch memory for each launch; of another version nothing is known."""
    received = []
    kernel = compiled(received, global_scratch_size=size)
    monkeypatch.setattr(triton, "__version__", version)
    triton.set_allocator(lambda size, align, stream: ("scratch", size, stream))
    try:
        bind(kernel)((1, 2, 3), 5, (6,))
    finally:
        triton.set_allocator(NullAllocator())
    (passed,) = received
    assert ("scratch", 64 * 6, 5) in passed or size == 0
    assert any(isinstance(e, triton.knobs.HookChain) for e in passed) == (
        size != 0 or version == "99.0"
    )
