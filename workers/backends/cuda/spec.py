"""The spec of the kind `cuda`."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from search_spaces.records import Device, Toolchain, Value
from workers.backend_spec import Describe, Peak
from workers.backends.cuda import limits
from workers.backends.gpu.spec import GpuSpec
from workers.processes.preload import BEFORE_TORCH, Call, Preload, WorkerRole

if TYPE_CHECKING:
    from workers.roles import Backend


#: Compiles what opening a device needs, unless a process of this user has.
_HOST_MODULES = Call("workers.compiling.host_code", "keep_host_modules", beside=True)


class CudaSpec(GpuSpec):
    """NVIDIA GPUs, watched through NVML."""

    kind = "cuda"
    visible_devices = "CUDA_VISIBLE_DEVICES"
    usual_target = "cuda:90"
    limits = limits.BY_CAPABILITY

    def find_devices(self) -> list[Device]:
        from workers.backends.cuda.devices import find_devices

        return find_devices()

    def likely_here(self) -> bool:
        from workers.backends.cuda.devices import has_driver

        return has_driver()

    def detect(self, index: int) -> Device:
        from workers.backends.cuda.devices import detect

        return detect(index)

    def make_describe(self) -> Describe:
        from workers.backends.cuda.devices import describe_devices

        answer: Future[list[Device]] = Future()

        def ask() -> None:
            devices: list[Device] = []
            try:
                devices = describe_devices()
            finally:
                answer.set_result(devices)

        threading.Thread(target=ask, name="described devices", daemon=True).start()

        def describe(index: int, options: Mapping[str, Value]) -> Device | None:
            devices = answer.result()
            return devices[index] if index < len(devices) else None

        return describe

    def toolchain(self) -> Toolchain:
        from workers.toolchain import triton_toolchain

        return triton_toolchain(ptxas=True, driver=True)

    def peak(self, device: Device) -> Peak | None:
        for words, peak in limits.PEAKS:
            if all(re.search(rf"\b{word}\b", device.name) for word in words):
                return peak
        return None

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        steps = super().preload(role, torch_free=torch_free)
        if role is WorkerRole.BUILDER:
            return steps
        return Preload.of(BEFORE_TORCH, "triton", _HOST_MODULES, steps)

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        from workers.backends.cuda.backend import CudaBackend

        return CudaBackend(index=index, cache_dir=cache_dir, **options)  # type: ignore[arg-type]
