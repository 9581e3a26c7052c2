"""The spec of the kind `interpreter`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.records import Device, Value
from workers.backend_spec import BackendSpec, Describe
from workers.processes.preload import TORCH, Preload, Variable, WorkerRole

if TYPE_CHECKING:
    from workers.roles import Backend

#: What is compiled to warm up a builder: any target Triton knows does.
_WARM_UP_TARGET = "cuda:90"


class InterpreterSpec(BackendSpec):
    """Triton's interpreter: it verifies variants that were built for an absent GPU."""

    kind = "interpreter"
    timed = False
    checks_size = True
    standby = False
    default_runners = 1

    def find_devices(self) -> list[Device]:
        from workers.host import cpu_device

        host = cpu_device()
        return [
            Device(
                kind=self.kind,
                name=f"Triton interpreter on {host.name}",
                target=self.kind,
                sm_count=host.sm_count,
                memory_bytes=host.memory_bytes,
            )
        ]

    def detect(self, index: int) -> Device:
        return self.find_devices()[0]

    def make_describe(self) -> Describe:
        return lambda index, options: self.detect(index)

    def preload(self, role: WorkerRole, *, torch_free: bool = False) -> Preload:
        from workers.backends.gpu.spec import TRITON_KEY, load_compilers

        if role is WorkerRole.BUILDER:
            compilers = load_compilers(_WARM_UP_TARGET)
            return Preload.of(TORCH, "triton", TRITON_KEY, "workers.compiling.gpu", compilers)
        # Triton reads the variable for the functions of its language when it is imported.
        interprets = Variable("TRITON_INTERPRET", "1")
        return Preload.of(TORCH, interprets, "triton", "workers.backends.interpreter.backend")

    def environment(self, cache_dir: Path) -> dict[str, str]:
        return {**super().environment(cache_dir), "TRITON_INTERPRET": "1"}

    def create(self, *, index: int, cache_dir: str, **options: Value) -> Backend:
        from workers.backends.interpreter.backend import InterpreterBackend

        return InterpreterBackend(index=index, cache_dir=cache_dir, **options)  # type: ignore[arg-type]
