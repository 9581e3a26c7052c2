"""What the specs of CUDA and HIP devices share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers import backend_kinds
from workers.backend_spec import BEFORE_TORCH, ENVIRONMENT, STATISTICS, WORKERS, BackendSpec
from workers.job_records import Artifact, BuildJob, Failure
from workers.supervision.process_folders import shared_folder

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel

_TRITON_KEY = "triton.runtime.cache:triton_key"
#: What torch.compile loads. Without the variable, asking whether there is a device would open it.
_INDUCTOR = (
    "PYTORCH_NVML_BASED_CUDA_CHECK=1",
    "torch._inductor.compile_fx",
    "PYTORCH_NVML_BASED_CUDA_CHECK=",
)
#: A small kernel whose build loads Triton and its compilers.
_SAMPLE = "softmax"


class GpuSpec(BackendSpec):
    """A GPU that Triton compiles for and torch calls `cuda`."""

    accelerator = True
    checks_size = True
    ray_gpus = 1
    stand_in = "interpreter"
    seconds_per_trial = 0.4
    #: The limits of known targets: opt-in shared memory of a block in bytes, 32-bit registers of a
    #: multiprocessor, threads of a warp; by architecture.
    limits: ClassVar[dict[str, tuple[int, int, int]]] = {}

    def offline(self, target: str) -> Device:
        kind, _, arch = target.partition(":")
        if kind != self.kind or arch not in self.limits:
            known = ", ".join(f"{self.kind}:{name}" for name in self.limits)
            raise TunerError(f"unknown target {target!r}", f"known targets: {known}")
        shared_bytes, registers, warp = self.limits[arch]
        return Device(
            kind=self.kind,
            name=f"{target} (not present)",
            target=target,
            shared_bytes=shared_bytes,
            registers=registers,
            warp_size=warp,
        )

    def check_target(self, target: str) -> None:
        self.offline(target)

    def warm_builder(self, cache_dir: Path) -> None:
        warm_triton(self.offline(self.usual_target), cache_dir)

    def compile(self, kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
        from workers.compiling.gpu import build_gpu

        # A kernel with the same constants, specialisations and options has the same binary for
        # several workloads, so that what one builder has compiled serves all builders of a pool.
        return build_gpu(kernel, job, shared_folder() or cache_dir)

    def build_sample(self, device: Device, cache_dir: Path) -> None:
        from workers.compiling.gpu import build_gpu

        kernel, job = sample(device)
        build_gpu(kernel, job, cache_dir)

    def environment(self, cache_dir: Path) -> dict[str, str]:
        # Variants share the host modules that Triton generates, see
        # `workers.compiling.host_modules`.
        shared = {"TRITON_CACHE_MANAGER": "workers.compiling.host_modules:HostModules"}
        return {**super().environment(cache_dir), **shared}

    def preload(self) -> tuple[str, ...]:
        """Triton, the digest of its own files, which is part of the name of every cached binary,
        and torch."""
        return (
            *(*BEFORE_TORCH, "triton", f"& {_TRITON_KEY}"),
            *(f"workers.backends.{self.kind}.backend", STATISTICS, "torch"),
        )

    def standby_preload(self) -> tuple[str, ...]:
        return (*self.preload(), *_INDUCTOR)

    def builder_preload(self) -> tuple[str, ...]:
        return (*self.preload(), *self._compiler())

    def torch_free_builder_preload(self) -> tuple[str, ...]:
        return (*ENVIRONMENT, *WORKERS, "triton", _TRITON_KEY, *self._compiler())

    def _compiler(self) -> tuple[str, ...]:
        return "workers.compiling.gpu", f"{__name__}:compile_sample {self.usual_target}"


def compile_sample(target: str) -> None:
    """Compile a small kernel in a builders' fork server, whose forks then have all of Triton ready.

    No device is visible meanwhile: a process that has asked the driver for one cannot be forked.
    """
    from workers.device import offline
    from workers.environment import set_variables

    hidden = {one.visible_devices: "" for one in backend_kinds.specs() if one.visible_devices}
    with set_variables(**hidden), tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        warm_triton(offline(target), Path(folder))


def warm_triton(device: Device, cache_dir: Path) -> None:
    """Compile a small kernel for a device; its code is never run."""
    from workers.compiling import build

    _, job = sample(device)
    build(job, cache_dir / "warm-up")


def sample(device: Device) -> tuple[Kernel, BuildJob]:
    """A small kernel, and the job to build it for a device."""
    from search_spaces.registry import load
    from workers.job_records import KernelRef

    kernel = load(_SAMPLE)
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, device)
    return kernel, BuildJob("sample", KernelRef(_SAMPLE), workload, config, device)
