"""What launches a compiled kernel of Triton: its C launcher, without the Python before it.

Triton's own launcher looks for hooks and scratch memory in each launch. What it passes to the C
launcher is recorded once, with marks in the place of the stream and of the arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import triton

#: Takes the grid of three numbers, the stream, and all arguments in their order, tensors as
#: addresses.
Launcher: TypeAlias = Callable[[tuple[int, ...], int, Sequence[Any]], object]
#: Versions of Triton whose launcher passes the same in all launches without hooks.
_KNOWN = ("3.6.", "3.7.", "3.8.", "3.9.")
#: What a launcher does for each launch if true, and what it does without that attribute.
_MORE = {"global_scratch_size": True, "profile_scratch_size": True, "gsan_enabled": False}


def bind(compiled: Any) -> Launcher:
    """The launcher of a compiled kernel, which is loaded on the current device.

    Triton's own launcher runs while hooks of launches are set, as profilers do, for kernels with
    scratch memory, and in versions of Triton that are not known.
    """
    compiled[1, 1, 1]  # loads it

    def plainly(grid: tuple[int, ...], stream: int, values: Sequence[Any]) -> object:
        return compiled[grid](*values, stream=stream)

    recorded = _record(compiled) if triton.__version__.startswith(_KNOWN) else None
    if recorded is None:
        return plainly
    launch, fixed, flat = recorded
    hooks = triton.knobs.runtime

    def directly(grid: tuple[int, ...], stream: int, values: Sequence[Any]) -> object:
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        if (enter is None or not getattr(enter, "calls", True)) and (
            leave is None or not getattr(leave, "calls", True)
        ):
            if flat:
                return launch(*grid, stream, *fixed, *values)
            return launch(*grid, stream, *fixed, values)
        return plainly(grid, stream, values)

    return directly


def _record(compiled: Any) -> tuple[Callable[..., object], tuple[Any, ...], bool] | None:
    """The C launcher, what it gets between the stream and the arguments, and whether these follow
    one by one; None for another launcher than NVIDIA's, and where it does more than that."""
    launcher, mark, seen = compiled.run, object(), []
    if type(launcher).__module__ != "triton.backends.nvidia.driver" or any(
        getattr(launcher, name, default) for name, default in _MORE.items()
    ):
        return None
    probe = copy.copy(launcher)
    probe.launch = lambda *passed: seen.append(passed)
    grid, given = (1, 2, 3), (compiled.function, compiled.packed_metadata, None, None, None)
    try:
        probe(*grid, mark, *given, mark)
        ((*before, last),) = seen
    except Exception:
        return None
    if before[:4] != [*grid, mark] or mark in before[4:] or last not in (mark, (mark,)):
        return None
    return launcher.launch, tuple(before[4:]), last is mark
