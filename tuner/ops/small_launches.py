"""Launches of small Triton kernels that have one fixed config and no table.

What they do is little, so that their host time counts: a compiled kernel is kept for each kind of
arguments, and gets addresses. Where one cannot be launched, the caller does the same with torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tuner.ops import compiling
from tuner.ops.launching import Launcher, bind
from tuner.runtime import without_compiler

_WIDE = range(-(2**31), 2**31)


class SmallLaunch:
    """A jitted function of tensors and numbers, then of constants; it specialises no number."""

    def __init__(self, fn: Any, num_warps: int = 4) -> None:
        self._fn, self._num_warps = fn, num_warps
        self._compiled: dict[tuple[Any, ...], Launcher | None] = {}

    def __call__(
        self, programs: int, arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> bool:
        """Whether it was launched: not on other devices, where nothing may be compiled now, and
        where the compilation fails. arguments: a tensor, then tensors and numbers."""
        device = arguments[0].device
        if device.type != "cuda":
            if interprets() and device.type == "cpu":
                self._fn[(programs,)](*arguments, **constants)
                return True
            return False
        if torch._C._cuda_getDevice() != device.index:
            with torch.cuda.device(device):
                return self(programs, arguments, constants)
        key: list[Any] = [device.index, *constants.values()]
        values = [*arguments]
        for at, each in enumerate(arguments):
            if isinstance(each, torch.Tensor):
                values[at] = address = each.data_ptr()
                key += (each.dtype, address & 15 == 0)
            else:
                key.append(each in _WIDE)
        kind = tuple(key)
        launch = self._compiled.get(kind)
        if launch is None:
            if kind in self._compiled or compiling.refuse():
                return False
            launch = self._compiled[kind] = self._compile(arguments, constants)
            if launch is None:
                return False
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        launch((programs, 1, 1), stream, [*values, *constants.values()])
        return True

    def _compile(self, arguments: Sequence[Any], constants: Mapping[str, Any]) -> Launcher | None:
        """The compiled kernel; None where that fails, which the next calls need not try again."""
        options = {"num_warps": self._num_warps, **constants}
        try:
            with without_compiler():
                return bind(self._fn.run(*arguments, grid=(1, 1, 1), warmup=True, **options))
        except Exception:
            return None


def interprets() -> bool:
    """Whether Triton interprets kernels, which then run on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
