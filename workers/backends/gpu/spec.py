"""What the specs of CUDA and HIP devices share."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from search_spaces.errors import TunerError
from search_spaces.records import Device
from workers import backend_kinds
from workers.backend_spec import BackendSpec
from workers.environment import HOST_MODULES
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.preload import (
    BEFORE_TORCH,
    ENVIRONMENT,
    STATISTICS,
    WORKERS,
    Call,
    Preload,
    Variable,
    WorkerRole,
)
from workers.processes.process_folders import shared_folder

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel

#: The digest of Triton's own files, which is part of the name of every cached binary.
TRITON_KEY = Call("triton.runtime.cache", "triton_key")
#: What torch.compile loads. Without the variable, asking whether there is a device would open it.
_INDUCTOR = Preload.of(
    Variable("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),
    "torch._inductor.compile_fx",
    Variable("PYTORCH_NVML_BASED_CUDA_CHECK", ""),
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
        return {**super().environment(cache_dir), **HOST_MODULES}

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        compilers = ("workers.compiling.gpu", load_compilers(self.usual_target))
        if role is WorkerRole.BUILDER and torch_free:
            return Preload.of(ENVIRONMENT, WORKERS, "triton", TRITON_KEY, *compilers)
        first = (BEFORE_TORCH, "triton", replace(TRITON_KEY, beside=True))
        if role is WorkerRole.BUILDER:
            return Preload.of(*first, "torch", *compilers)
        backend = (f"workers.backends.{self.kind}.backend", STATISTICS, "torch")
        own = _INDUCTOR if role is WorkerRole.STANDBY else Preload()
        return Preload.of(*first, *backend, own)


def load_compilers(target: str) -> Call:
    """The step that loads all of Triton's compilers."""
    return Call(__name__, compile_sample.__name__, (target,))


def compile_sample(target: str) -> None:
    """Compile a small kernel, whose code is never run, so that forks have all of Triton ready.

    No device is visible meanwhile: a process that has asked the driver for one cannot be forked.
    """
    from workers.compiling import build
    from workers.device import offline
    from workers.environment import set_variables

    hidden = {one.visible_devices: "" for one in backend_kinds.specs() if one.visible_devices}
    with set_variables(**hidden), tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        build(sample(offline(target))[1], Path(folder))


def sample(device: Device) -> tuple[Kernel, BuildJob]:
    """A small kernel, and the job to build it for a device."""
    from search_spaces.registry import load
    from workers.job_records import KernelRef

    kernel = load(_SAMPLE)
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, device)
    return kernel, BuildJob("sample", KernelRef(_SAMPLE), workload, config, device)
