"""NVIDIA and AMD GPUs: Triton variants, launched from artifacts and timed by events."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from search_spaces.kernel import Kernel
from search_spaces.records import Workload, config_key
from workers.build import count_compilations
from workers.measure.duel import Contestant
from workers.measure.failures import failure_of
from workers.measure.floor import floor_us
from workers.measure.gate import check_variant
from workers.measure.integrity import CudaWatch, Watch
from workers.measure.monitor import Monitor, nvml_look
from workers.measure.session import Entry
from workers.measure.task import Task
from workers.measure.timers import EventTimer
from workers.measure.torch_bench import TorchBench
from workers.measure.variants import bind
from workers.records import Artifact, Calibration, Failure, KernelRef
from workers.records import Protocol as Constants

_COPY_BYTES = 256 * 2**20
_COPIES = 8


class CudaBackend(TorchBench):
    """One GPU of this process; `index` counts those that are visible to it."""

    kind = "cuda"
    torch_device = "cuda"

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 4
    ) -> None:
        import torch

        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        torch.cuda.set_device(index)
        self._look = nvml_look(self._device.uuid) if self.kind == "cuda" else None
        self._watch = CudaWatch() if self.kind == "cuda" else Watch()
        self._timers: dict[str, EventTimer] = {}
        self._bytes_per_us: float | None = None

    def prepare(self, task: Task, artifact: Artifact, *, check: bool) -> Entry | Failure:
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

    def timer(self, constants: Constants, entries: Sequence[Entry]) -> EventTimer:
        return self.plain_timer(constants)

    def plain_timer(self, constants: Constants) -> EventTimer:
        import torch

        if constants.cache not in self._timers:
            flush = None
            if constants.cache == "cold":
                flush = torch.empty(2 * self._cache_bytes(), dtype=torch.uint8, device="cuda")
            self._timers[constants.cache] = EventTimer(flush, self._warmth)
        return self._timers[constants.cache]

    def monitor(self) -> AbstractContextManager[Monitor]:
        return Monitor(self._look)

    def floor_us(self, task: Task, cache: str) -> float:
        """What no cache can have held, at the speed of a copy, or the products at their peak.

        Caches hold none of it for sure only when they are cold: else traffic knows no floor.
        """
        calibration = self.calibration or Calibration(copy_bytes_per_us=self._bandwidth())
        return floor_us(
            task.kernel.cost(task.workload),
            {str(tensor.dtype).removeprefix("torch.") for tensor in task.inputs.values()},
            task.tolerance,
            calibration,
            held_bytes=self._cache_bytes() if cache == "cold" else None,
        )

    def close(self) -> None:
        import torch

        super().close()
        self._timers.clear()
        if not self.poisoned:
            torch.cuda.empty_cache()

    def _prepare(self, task: Task, artifact: Artifact, check: bool) -> Entry | Failure:
        import torch

        variant = bind(task, artifact.config)
        with count_compilations(self.kind) as compilations:
            if check:
                checked = check_variant(
                    task,
                    variant.run,
                    outputs=variant.outputs,
                    scratch=variant.scratch,
                    watch=self._watch,
                )
            else:
                checked = None
                variant.run()
                torch.cuda.synchronize()
        self._warmth.touch()
        if isinstance(checked, Failure):
            return checked
        contestant = Contestant(config_key(artifact.config), variant.run)
        return self._entry(
            task, contestant, checked, outputs=variant.outputs, compiled=compilations.count
        )

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        small = kernel.small_workload(workload)
        return (workload,) if small == workload else (workload, small)

    def _build_task(self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]) -> Task:
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

    def _make_room(self, task: Task | None) -> None:
        import torch

        self._tasks.clear_all_but(task)
        torch.cuda.empty_cache()

    def _cache_bytes(self) -> int:
        import torch

        return self._device.l2_bytes or torch.cuda.get_device_properties().L2_cache_size

    def _bandwidth(self) -> float:
        """Bytes a device-to-device copy moves per us, read plus written; measured once.

        Infinite, so that there is no floor, while the device has no memory to spare.
        """
        import torch

        if self._bytes_per_us is None:
            try:
                source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
                target = torch.empty_like(source)
            except torch.OutOfMemoryError:
                return math.inf
            copy = Contestant("copy", lambda: target.copy_(source))
            timer = EventTimer(None, self._warmth)
            timer.warm(copy, 20.0)
            fastest_us = min(timer.collect([copy], [[0]] * _COPIES)[0])
            self._bytes_per_us = 2 * _COPY_BYTES / fastest_us
        return self._bytes_per_us


class HipBackend(CudaBackend):
    """An AMD GPU, through torch's same interface; there is no NVML to watch it."""

    kind = "hip"
