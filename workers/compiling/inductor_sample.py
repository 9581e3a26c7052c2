"""What Inductor does once in a process, done once for all of its forks.

The first compilation in a process takes a second more than later ones: Inductor fills its tables of
patterns and decompositions, and imports what only a compilation needs. A fork server therefore
compiles a small function before builders and runners fork from it. Its C++ is not compiled, and the
vector instructions are not probed: both are work of builders, which report what fails.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workers import backend_kinds
from workers.compiling.cache import compile_in_this_thread
from workers.environment import set_variables

_ROWS, _COLS = 8, 64


def compile_sample() -> None:
    """Compile a small function in a fork server, all but its C++.

    No device is visible meanwhile: a process that has asked a driver for one cannot be forked.
    Dynamo and Inductor forget the function afterwards.
    """
    import torch
    from torch._inductor import utils

    def sample(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.gelu(x + bias), dim=-1)

    hidden = {one.visible_devices: "" for one in backend_kinds.specs() if one.visible_devices}
    compile_in_this_thread()
    without_timing_guards()
    with (
        tempfile.TemporaryDirectory(prefix="tuner-", ignore_cleanup_errors=True) as folder,
        set_variables(**hidden, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        try:
            with _without_cpp(), torch.no_grad():
                compiled = torch.compile(sample, dynamic=False)
                compiled(torch.zeros(_ROWS, _COLS), torch.zeros(_COLS))
        finally:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            clear = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
            clear()


def without_timing_guards() -> None:
    """Keep Dynamo from timing the guards of each function that it compiles.

    It flushes the caches of the processor for it, which takes 30 ms, and the result is only logged.
    Does nothing where this version of torch does not time guards, or has not loaded Dynamo.
    """
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = _no_latency


def _no_latency(*_: object, **__: object) -> float:
    return 0.0


@contextmanager
def _without_cpp() -> Iterator[None]:
    """Inductor without vector instructions and with kernels that do nothing, inside the block.

    Raises AttributeError where this version of torch has no such places.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    instructions: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    loader = codecache.CppPythonBindingsCodeCache
    progress: Any = getattr(importlib.import_module("torch._inductor.async_compile"), "tqdm", None)
    replaced: list[tuple[Any, str, object]] = [
        (loader, "load_pybinding", lambda *_, **__: _nothing),
        (instructions, "valid_vec_isa_list", list),
    ]
    if hasattr(progress, "monitor_interval"):
        # Else the progress bar, though it is not shown, starts a thread, which may hold a lock
        # when the server forks.
        replaced.append((progress, "monitor_interval", 0))
    # The dictionary's own value: a class method that is read from its class is bound.
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _nothing(*_: object) -> None:
    """A kernel that computes nothing."""
