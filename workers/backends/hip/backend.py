"""An AMD GPU that runs and times variants."""

from __future__ import annotations

from workers.backends.gpu.backend import GpuBackend


class HipBackend(GpuBackend):
    """One AMD GPU: timed by events; nothing watches its clocks, since NVML does not know it."""

    kind = "hip"
    only_method = "events"
