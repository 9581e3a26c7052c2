"""Triton without a device: a driver that describes an absent one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.absent_device.fake_driver import TargetDriver, active, gpu_target
from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers.device import offline

__all__ = ["TargetDriver", "gpu_target", "use_target"]


@contextmanager
def use_target(target: str, device: Device | None = None) -> Iterator[TargetDriver]:
    """Compile for `target` inside the block, whichever devices this machine has.

    Kernels can be compiled in the block (`fn.warmup`), but not launched. Afterwards the previous
    driver is active again. device: its properties are the driver's; by default those of the
    target's usual device.
    """
    if device is None:
        try:
            device = offline(target)
        except TunerError:
            device = Device(gpu_target(target).backend, target, target)
    driver = TargetDriver(device)
    with active(driver):
        yield driver
