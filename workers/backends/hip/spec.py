"""The spec of the kind `hip`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.records import Device, Value
from workers.backend_spec import Peak
from workers.backends.gpu.spec import GpuSpec
from workers.backends.hip import devices
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.preload import Preload, WorkerRole

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from workers.roles import Backend


class HipSpec(GpuSpec):
    """AMD GPUs, through torch's interface for CUDA."""

    kind = "hip"
    visible_devices = "HIP_VISIBLE_DEVICES"
    usual_target = "hip:gfx942"
    limits = devices.BY_ARCHITECTURE

    def find_devices(self) -> list[Device]:
        return devices.find_devices()

    def likely_here(self) -> bool:
        return devices.has_driver()

    def detect(self, index: int) -> Device:
        return devices.detect(index)

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        return super().preload(role)

    def compile(self, kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
        # Triton's AMD backend specialises kernels by the size of the storage of torch's tensors.
        import torch  # noqa: F401

        return super().compile(kernel, job, cache_dir)

    def peak(self, device: Device) -> Peak | None:
        for word, peak in devices.PEAKS.items():
            if re.search(rf"\b{word}\b", device.name):
                return peak
        return None

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        from workers.backends.hip.backend import HipBackend

        return HipBackend(index=index, cache_dir=cache_dir, **options)  # type: ignore[arg-type]
