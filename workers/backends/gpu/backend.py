"""A GPU that torch calls `cuda`: Triton variants, launched from artifacts and timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.records import Workload, config_key
from search_spaces.triton_versions import settle_cache_keys
from tuner.base.tracing import span
from workers.compiling import count_compilations
from workers.compiling.launch_key import LaunchKey, difference
from workers.job_records import Artifact, Calibration, Failure, KernelRef, MeasurementProtocol
from workers.measure.failure_values import failure_of
from workers.measure.gate.checks import check_variant
from workers.measure.monitor import Monitor, Sample
from workers.measure.roofline import at_peak_us, roofline_us
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import Checked, TaskTensors
from workers.measure.timers.methods import choose_method, gpu_timer
from workers.measure.timers.timer import Candidate, Timer
from workers.measure.torch_backend import TorchBackend
from workers.measure.triton_launch import bind, bind_copies, provide_memory

if TYPE_CHECKING:
    import torch

#: The last candidates of a job, whose times choose the timing method.
_TRIED = 4
#: Unused memory that is not worth giving back.
_UNUSED_BYTES = 2**30


def _ignore(result: object) -> None:
    """Skip the inspection of outputs after a run."""


def _compiled_why(artifact: Artifact, missed: Sequence[LaunchKey]) -> str:
    """The part of the cache key that differs from the build's; empty when all launches hit."""
    if not missed or not artifact.keys:
        return ""
    return f"compiled on the device worker: {difference(artifact.keys, missed[0])}"


class GpuBackend(TorchBackend):
    """One GPU of this process; `index` counts the GPUs that are visible to it."""

    torch_device = "cuda"
    #: The only timing method of the kind; empty when the job's protocol chooses.
    only_method: ClassVar[str] = ""

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 8
    ) -> None:
        import torch
        import triton
        from triton.runtime.cache import triton_key

        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        settle_cache_keys()
        self._index = index
        with span("make the device's context", "start"):
            torch.cuda.set_device(index)
            provide_memory(self.torch_device)
        # Loaded now, because a first launch would wait for it: Triton's driver module, and the
        # digest of Triton's compiler, which names its cached binaries. References and baselines
        # would wait for the library of matrix products. Nothing is launched here: a variant that
        # hangs may occupy the device.
        with span("load Triton's driver", "start"):
            _ = triton.runtime.driver.active.utils
            triton_key()
        with span("load the library of matrix products", "start"):
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        self._read_sample: Callable[[], Sample] | None = None
        self._timers: dict[tuple[str, str], Timer] = {}
        self._flush: torch.Tensor | None = None

    def prepare(
        self, task: TaskTensors, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure:
        import torch

        try:
            if refused := self._install(artifact):
                return refused
            try:
                return self._prepare(task, artifact, check)
            except torch.OutOfMemoryError:
                # The tensors of other tasks may occupy the memory that is missing.
                self._make_room(task)
                return self._prepare(task, artifact, check)
        except Exception as problem:
            return self._make_failure(problem)

    def timer(self, constants: MeasurementProtocol, entries: Sequence[PreparedCandidate]) -> Timer:
        """A timer of the protocol's method; `auto` chooses by the fastest of a few entries."""
        method = self.only_method or constants.method
        if method == "auto":
            method = choose_method(self._duration_us(constants, entries), constants.cache)
        return self._timer(method, constants.cache)

    def plain_timer(self, constants: MeasurementProtocol) -> Timer:
        return self._timer("events", constants.cache)

    def _timer(self, method: str, cache: str) -> Timer:
        if (method, cache) not in self._timers:
            flush = self._flush_buffer() if cache == "cold" else None
            known = self.calibration() or Calibration()
            self._timers[method, cache] = gpu_timer(method, flush, self._warm_up, known, cache)
        return self._timers[method, cache]

    def _duration_us(
        self, constants: MeasurementProtocol, entries: Sequence[PreparedCandidate]
    ) -> float:
        few = [replace(entry.candidate, after_checked_run=_ignore) for entry in entries[-_TRIED:]]
        timer = self._timer("events", constants.cache)
        samples = timer.collect(few, [list(range(len(few)))] * 3)
        return min(min(row) for row in samples)

    def _flush_buffer(self) -> torch.Tensor:
        """A buffer of twice the last-level cache, to write over."""
        import torch

        if self._flush is None:
            self._flush = torch.empty(2 * self._cache_bytes(), dtype=torch.uint8, device="cuda")
        return self._flush

    def _calibrate(self) -> Calibration:
        from workers.measure.timers.calibration import calibrate_gpu, spot_check_gpu
        from workers.measure.timers.kept_calibration import kept_or_new

        found = kept_or_new(
            self._device,
            self._toolchain,
            spot_check_gpu,
            lambda: calibrate_gpu(self._flush_buffer()),
        )
        self._warm_up.mark_busy()
        return found

    def monitor(self) -> AbstractContextManager[Monitor]:
        return Monitor(self._read_sample)

    def roofline_us(self, task: TaskTensors, cache: str) -> float:
        """The larger of two times: the uncached traffic at copy speed, the products at peak rate.

        Traffic bounds the time only under cold caches; warm caches may hold all of it.
        """
        held_bytes = self._cache_bytes() if cache == "cold" else None
        return roofline_us(*self._work(task), held_bytes=held_bytes)

    def _at_peak_us(self, task: TaskTensors) -> float | None:
        # Does not calibrate: a variant that is only checked is not timed.
        return at_peak_us(*self._work(task)) if self._calibration else None

    def _work(self, task: TaskTensors) -> tuple[Cost, set[str], Tolerance, Calibration]:
        """The inputs of the roofline bound: cost, dtypes, tolerance and calibration."""
        return (
            task.kernel.cost(task.workload),
            {str(tensor.dtype).removeprefix("torch.") for tensor in task.inputs.values()},
            task.tolerance,
            self.calibration() or Calibration(),
        )

    def close(self) -> None:
        import torch

        super().close()
        self._timers.clear()
        if not self.poisoned:
            torch.cuda.empty_cache()

    def _prepare(
        self, task: TaskTensors, artifact: Artifact, check: bool
    ) -> PreparedCandidate | Failure:
        import torch

        variant = bind(task, artifact.config)
        with count_compilations(import_inductor=False) as compilations:
            if check:
                checked = check_variant(
                    task,
                    variant.run,
                    outputs=variant.outputs,
                    scratch=variant.scratch,
                    observer=self._observer,
                    **self._demand_bits(task),
                )
            else:
                checked = None
                variant.run()
                torch.cuda.synchronize()
        self._warm_up.mark_busy()
        if isinstance(checked, Failure):
            return checked
        rotations: tuple[Callable[[], object], ...] = ()
        if copies := len(self._copies(task)):
            rotations = bind_copies(task, artifact.config, copies)
        candidate = Candidate(config_key(artifact.config), variant.run, rotations=rotations)
        return self._make_prepared(
            task,
            candidate,
            checked,
            outputs=variant.outputs,
            compiled=compilations.count,
            note=_compiled_why(artifact, compilations.missed),
        )

    def _enter_thread(self) -> None:
        import torch

        torch.cuda.set_device(self._index)
        # A thread has no context until it calls the runtime, and compilers use the driver.
        torch.cuda.synchronize()

    def _has_room(self) -> bool:
        import torch

        free, total = torch.cuda.mem_get_info()
        return free > total / 2

    def _release_unused_memory(self, share: float) -> None:
        import torch

        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        most = max(_UNUSED_BYTES, share * self._device.memory_bytes)
        if not self.poisoned and unused > most:
            torch.cuda.empty_cache()

    def _check_baseline(self, task: TaskTensors, name: str) -> Checked | Failure:
        import torch

        try:
            return super()._check_baseline(task, name)
        except torch.OutOfMemoryError:
            self._make_room(task)
            return super()._check_baseline(task, name)

    def _preload(self, task: TaskTensors) -> None:
        """Run the gate on a variant that does nothing, which loads what the gate calls."""
        check_variant(task, lambda: None, outputs=task.outputs(), observer=self._observer)

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        small = kernel.small_workload(workload)
        return (workload,) if small == workload else (workload, small)

    def _build_task(
        self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]
    ) -> TaskTensors:
        import torch

        try:
            return super()._build_task(ref, workload, seeds)
        except torch.OutOfMemoryError:
            self._make_room(None)
            return super()._build_task(ref, workload, seeds)

    def _make_failure(self, error: Exception, doing: str = "") -> Failure:
        """The failure of an exception; a context that no longer synchronises is lost."""
        import torch

        failure = failure_of(error, doing=doing)
        try:
            torch.cuda.synchronize()
        except Exception:
            self.poisoned = True
        return failure

    def _make_room(self, task: TaskTensors | None) -> None:
        import torch

        self._clear_tasks(task)
        torch.cuda.empty_cache()

    def _cache_bytes(self) -> int:
        import torch

        return self._device.l2_bytes or torch.cuda.get_device_properties().L2_cache_size
