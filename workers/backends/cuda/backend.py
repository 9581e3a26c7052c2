"""An NVIDIA GPU that runs and times variants."""

from __future__ import annotations

import os

from workers.backends.gpu.backend import GpuBackend
from workers.measure.gate.run_observer import CudaRunObserver
from workers.measure.monitor import nvml_reader


class CudaBackend(GpuBackend):
    """One NVIDIA GPU: all timing methods, its clocks and power watched through NVML."""

    kind = "cuda"

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 8
    ) -> None:
        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        self._read_sample = nvml_reader(self._device.uuid)
        self._observer = CudaRunObserver()
