"""The spec of the kind `cpu`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.records import Device, Toolchain, Value
from workers.backend_spec import BackendSpec, Describe
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.preload import STATISTICS, TORCH, Call, Preload, WorkerRole

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from workers.roles import Backend

_INDUCTOR = Preload.of(
    *(TORCH, "torch._inductor.compile_fx", "workers.compiling.inductor"),
    Call("workers.compiling.inductor", "compile_sample"),
)


class CpuSpec(BackendSpec):
    """The processors of a machine, as one device. Inductor compiles its variants to C++."""

    kind = "cpu"
    # A standby would share the processors that are timed.
    standby = False
    # Several would disturb each other.
    default_runners = 1
    seconds_per_trial = 5.0

    def find_devices(self) -> list[Device]:
        from workers.host import cpu_device

        return [cpu_device()]

    def detect(self, index: int) -> Device:
        # A cluster counts runners over its nodes; each node has one such device.
        return self.find_devices()[0]

    def make_describe(self) -> Describe:
        # The option `cores` changes what the runner's process sees.
        return lambda index, options: None if options.get("cores") else self.detect(index)

    def toolchain(self) -> Toolchain:
        from workers.toolchain import inductor_toolchain

        return inductor_toolchain()

    def compile(self, kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
        from workers.compiling.inductor import build_cpu

        return build_cpu(kernel, job, cache_dir)

    def build_sample(self, device: Device, cache_dir: Path) -> None:
        from workers.compiling.inductor import build_sample

        build_sample(cache_dir)

    def environment(self, cache_dir: Path) -> dict[str, str]:
        return {
            **super().environment(cache_dir),
            # Waiting threads must not burn the cores that the next candidate is timed on.
            "OMP_WAIT_POLICY": "passive",
            "OMP_DYNAMIC": "false",
        }

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        if role is WorkerRole.BUILDER:
            return _INDUCTOR
        # Inductor has chosen the folder of its precompiled headers during its import.
        headers = Call("workers.compiling.isa", "without_header_precompilation")
        return Preload.of(_INDUCTOR, headers, "workers.backends.cpu.backend", STATISTICS)

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        from workers.backends.cpu.backend import CpuBackend

        return CpuBackend(index=index, cache_dir=cache_dir, **options)  # type: ignore[arg-type]
