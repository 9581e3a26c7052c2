"""Triton without a device: a driver that answers only what the compiler asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from search_spaces.errors import TunerError

_scopes = itertools.count()


class OfflineDriver:
    """Names a target and no device, for `triton.runtime.driver.set_active`.

    Triton keeps compiled kernels in memory by `get_current_device()`. Every driver object answers
    with a name of its own, so no binary of another target, or of the real device, can be mistaken
    for one of this target, and all builds go through the cache on disk.
    """

    def __init__(self, target: str) -> None:
        self._target = gpu_target(target)
        self.scope = f"{target}#{next(_scopes)}"

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return self.scope

    def get_current_stream(self, device: object) -> int:
        return 0


def gpu_target(target: str) -> Any:
    """Triton's `GPUTarget` of `cuda:90` or `hip:gfx942`; `TunerError` for anything else."""
    from triton.backends.compiler import GPUTarget

    backend, _, arch = target.partition(":")
    if backend == "cuda" and arch.isdecimal():
        return GPUTarget("cuda", int(arch), 32)
    if backend == "hip" and arch.startswith("gfx") and len(arch) >= 6:
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise TunerError(
        f"{target!r} is not a target Triton can be told to build for",
        "write cuda:90 or hip:gfx942",
    )


@contextmanager
def use_target(target: str) -> Iterator[OfflineDriver]:
    """Compile for `target` inside the block, whatever device this machine has or lacks.

    Kernels can be compiled there (`fn.warmup`), not launched. The driver that was active before,
    if any, is active again afterwards.
    """
    from triton.runtime import driver

    slot = "_active" if "_active" in vars(driver) else "active"
    before = vars(driver).get(slot)
    offline = OfflineDriver(target)
    driver.set_active(offline)
    try:
        yield offline
    finally:
        setattr(driver, slot, before)
