"""NVIDIA and AMD GPUs: Triton variants, launched from artifacts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.records import Workload, config_key
from workers.build import count_compilations
from workers.build.launch_key import LaunchKey, difference
from workers.measure.failures import failure_of
from workers.measure.gate.checks import check_variant
from workers.measure.gate.run_observer import CudaRunObserver, RunObserver
from workers.measure.monitor import Monitor, nvml_reader
from workers.measure.roofline import at_peak_us, roofline_us
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_data import TaskData
from workers.measure.timers.methods import choose_method, gpu_timer
from workers.measure.timers.timer import Candidate, Timer
from workers.measure.torch_backend import TorchBackend
from workers.measure.triton_launch import bind, bind_copies, provide_memory
from workers.records import Artifact, Calibration, Failure, KernelRef, MeasurementProtocol

if TYPE_CHECKING:
    import torch

#: entries, of those at hand, by whose times a method is chosen
_TRIED = 4


def _ignore(result: object) -> None:
    """What a run left is not looked at yet."""


def _compiled_why(artifact: Artifact, missed: Sequence[LaunchKey]) -> str:
    """Which part of its key kept a launch from finding what was built; empty when all did."""
    if not missed or not artifact.keys:
        return ""
    return f"compiled on the device worker: {difference(artifact.keys, missed[0])}"


class CudaBackend(TorchBackend):
    """One GPU of this process; `index` counts those that are visible to it."""

    kind = "cuda"
    torch_device = "cuda"

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 4
    ) -> None:
        import torch
        import triton
        from triton.runtime.cache import triton_key

        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        torch.cuda.set_device(index)
        provide_memory(self.torch_device)
        # What a first launch would wait for: Triton's own driver module, built and loaded, and the
        # digest of its compiler, by which it looks for binaries; what references and baselines
        # would wait for: the library of matrix products. Nothing is launched: the device may be
        # in the hands of a variant that hangs.
        _ = triton.runtime.driver.active.utils
        triton_key()
        torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        self._read_sample = nvml_reader(self._device.uuid) if self.kind == "cuda" else None
        self._observer = CudaRunObserver() if self.kind == "cuda" else RunObserver()
        self._timers: dict[tuple[str, str], Timer] = {}
        self._flush: torch.Tensor | None = None

    def prepare(
        self, task: TaskData, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure:
        import torch

        try:
            if refused := self._install(artifact):
                return refused
            try:
                return self._prepare(task, artifact, check)
            except torch.OutOfMemoryError:
                # The tensors of other tasks may be all that is in the way.
                self._make_room(task)
                return self._prepare(task, artifact, check)
        except Exception as problem:
            return self._failed(problem)

    def timer(self, constants: MeasurementProtocol, entries: Sequence[PreparedCandidate]) -> Timer:
        """By the method asked for; `auto` chooses it by the fastest of a few of the entries."""
        method = constants.method
        if self.kind != "cuda":
            method = "events"
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
        """Twice the last-level cache, to be written over."""
        import torch

        if self._flush is None:
            self._flush = torch.empty(2 * self._cache_bytes(), dtype=torch.uint8, device="cuda")
        return self._flush

    def _calibrate(self) -> Calibration:
        from workers.measure.timers.calibration import calibrate_gpu

        found = calibrate_gpu(self._flush_buffer())
        self._warm_up.mark_busy()
        return found

    def monitor(self) -> AbstractContextManager[Monitor]:
        return Monitor(self._read_sample)

    def roofline_us(self, task: TaskData, cache: str) -> float:
        """What no cache can have held, at the speed of a copy, or the products at their peak.

        Caches hold none of it for sure only when they are cold: else traffic knows no floor.
        """
        held_bytes = self._cache_bytes() if cache == "cold" else None
        return roofline_us(*self._work(task), held_bytes=held_bytes)

    def _at_peak_us(self, task: TaskData) -> float | None:
        # Nothing is calibrated for it: what is only checked is not timed.
        return at_peak_us(*self._work(task)) if self._calibration else None

    def _work(self, task: TaskData) -> tuple[Cost, set[str], Tolerance, Calibration]:
        """What a floor is reckoned from."""
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
        self, task: TaskData, artifact: Artifact, check: bool
    ) -> PreparedCandidate | Failure:
        import torch

        variant = bind(task, artifact.config)
        with count_compilations(self.kind) as compilations:
            if check:
                checked = check_variant(
                    task,
                    variant.run,
                    outputs=variant.outputs,
                    scratch=variant.scratch,
                    observer=self._observer,
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
        return self._prepared(
            task,
            candidate,
            checked,
            outputs=variant.outputs,
            compiled=compilations.count,
            note=_compiled_why(artifact, compilations.missed),
        )

    def _preload(self, task: TaskData) -> None:
        """Run the gate on a variant that does nothing, which loads what the gate calls."""
        check_variant(task, lambda: None, outputs=task.outputs(), observer=self._observer)

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        small = kernel.small_workload(workload)
        return (workload,) if small == workload else (workload, small)

    def _build_task(self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]) -> TaskData:
        import torch

        try:
            return super()._build_task(ref, workload, seeds)
        except torch.OutOfMemoryError:
            self._make_room(None)
            return super()._build_task(ref, workload, seeds)

    def _failed(self, error: Exception, doing: str = "") -> Failure:
        """A context that can no longer be synchronised is lost for good."""
        import torch

        failure = failure_of(error, doing=doing)
        try:
            torch.cuda.synchronize()
        except Exception:
            self.poisoned = True
        return failure

    def _make_room(self, task: TaskData | None) -> None:
        import torch

        self._tasks.clear_all_but(task)
        torch.cuda.empty_cache()

    def _cache_bytes(self) -> int:
        import torch

        return self._device.l2_bytes or torch.cuda.get_device_properties().L2_cache_size


class HipBackend(CudaBackend):
    """An AMD GPU, through torch's same interface; there is no NVML to watch it."""

    kind = "hip"
