"""Triton without a device: a driver that answers for one that is not here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.absent_device.answers import TargetDriver, active, gpu_target
from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers.device import offline

__all__ = ["TargetDriver", "gpu_target", "use_target"]


@contextmanager
def use_target(target: str, device: Device | None = None) -> Iterator[TargetDriver]:
    """Compile for `target` inside the block, whatever device this machine has or lacks.

    Kernels can be compiled there (`fn.warmup`), not launched. The driver that was active before,
    if any, is active again afterwards. device: whose properties the driver tells; by default those
    that are usual for the target.
    """
    if device is None:
        try:
            device = offline(target)
        except TunerError:
            device = Device(gpu_target(target).backend, target, target)
    driver = TargetDriver(device)
    with active(driver):
        yield driver
