"""The base class of the backends whose tensors are torch's."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from search_spaces.kernel import Kernel
from search_spaces.records import Device, Status, Toolchain, Workload
from search_spaces.registry import load
from workers import backend_kinds
from workers import toolchain as toolchains
from workers.build import install
from workers.measure.failures import failure_of
from workers.measure.gate.buffers import GuardedTensor
from workers.measure.gate.checks import Checked, check_variant
from workers.measure.gate.run_observer import RunObserver
from workers.measure.gate.timed_run_check import TimedRunCheck
from workers.measure.monitor import Monitor
from workers.measure.session import Session
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_data import TaskCache, TaskData
from workers.measure.timers.timer import Candidate, Timer
from workers.measure.timers.warm_up import WarmUp
from workers.records import (
    Artifact,
    Calibration,
    Check,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
)

if TYPE_CHECKING:
    import torch

_BASELINE_WARM_CALLS = 3
#: The copies of the cache policy `rotate` are together this many times the last-level cache.
_ROTATED_CACHES = 5


class TorchBackend(ABC):
    """Kernels, tasks and artifacts of one device; subclasses launch and time variants.

    Implements `workers.roles.Backend` and `SessionBackend`. index: number of the device.
    cache_dir: where artifacts are installed. tasks: how many tasks keep their tensors on the
    device.
    """

    kind: str
    #: Torch's name of the device.
    torch_device: ClassVar[str]

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 4
    ) -> None:
        self.poisoned = False
        #: None until it is measured or comes with a job.
        self._calibration: Calibration | None = None
        self._cache = MeasurementProtocol().cache
        # Its snapshot of the harness must precede the first kernel's module.
        self._observer = RunObserver()
        self._seeds = MeasurementProtocol().seeds
        self._device = backend_kinds.spec(self.kind).detect(index)
        self._toolchain = backend_kinds.spec(self.kind).toolchain()
        self._cache_dir = Path(cache_dir)
        self._installed: set[frozenset[str]] = set()
        self._kernels: dict[KernelRef, Kernel] = {}
        self._tasks = TaskCache(self._build_task, tasks)
        self._warm_up = WarmUp()

    # -- the Backend role ----------------------------------------------------------------------
    def info(self) -> tuple[Device, Toolchain]:
        return self._device, self._toolchain

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        import torch

        try:
            with torch.no_grad():
                return self._measure(job)
        except Exception as error:
            return self._failed(error, f"kernel `{job.kernel.spec}`")
        finally:
            self._tasks.drop_suspects()

    def close(self) -> None:
        self._tasks.clear()

    def calibration(self) -> Calibration | None:
        """The calibration of the device and its timers, measured once unless a job brought it.

        None for a backend that does not time.
        """
        if self._calibration is None:
            self._calibration = self._calibrate()
        return self._calibration

    # -- for subclasses to define --------------------------------------------------------------
    @abstractmethod
    def prepare(
        self, task: TaskData, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure: ...

    @abstractmethod
    def timer(
        self, protocol: MeasurementProtocol, prepared: Sequence[PreparedCandidate]
    ) -> Timer: ...

    @abstractmethod
    def plain_timer(self, protocol: MeasurementProtocol) -> Timer: ...

    def monitor(self) -> AbstractContextManager[Monitor]:
        return Monitor(None)

    def roofline_us(self, task: TaskData, cache: str) -> float:
        return 0.0

    def _at_peak_us(self, task: TaskData) -> float | None:
        """Time of the task's arithmetic at the matrix peak in us, None when unknown."""
        return None

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        """The workloads that a variant is checked on when it is not timed."""
        return (workload,)

    def _calibrate(self) -> Calibration | None:
        return None

    def _enter_baseline(self) -> None:  # noqa: B027
        """Untimed switch to a baseline, such as its thread count."""

    def _preload(self, task: TaskData) -> None:  # noqa: B027
        """Load in advance what the first variant of the task needs."""

    def _failed(self, error: Exception, doing: str = "") -> Failure:
        """The failure of an exception. A subclass sets `poisoned` here if the device is lost."""
        return failure_of(error, doing=doing)

    # -- shared -------------------------------------------------------------------------------
    def prepare_baseline(self, task: TaskData, name: str) -> PreparedCandidate | Failure:
        if name not in task.baselines:
            known = ", ".join(task.baselines) or "none"
            return Failure(
                Status.RUNTIME, f"`{task.kernel.name}` has no baseline `{name}` (it has: {known})"
            )
        function = task.baselines[name]

        def run() -> object:
            return function(task.inputs)

        try:
            self._enter_baseline()
            for _ in range(_BASELINE_WARM_CALLS):
                run()
            checked = check_variant(task, lambda: function(task.inputs))
        except Exception as problem:
            return self._failed(problem, f"baseline `{name}`")
        if isinstance(checked, Failure):
            return checked
        rotations = tuple(partial(function, inputs) for inputs in self._copies(task))
        candidate = Candidate(name, run, enter=self._enter_baseline, rotations=rotations)
        return self._prepared(task, candidate, checked)

    def check(self, ref: KernelRef, check: Check) -> Failure | None:
        """Run the whole gate on an artifact of another workload; None when it passes.

        The seeds are those of the current job. Nothing is timed.
        """
        try:
            task = self._tasks.get(ref, check.workload, self._seeds)
            outcome = self.prepare(task, check.artifact, check=True)
        except Exception as error:
            return self._failed(error)
        return outcome if isinstance(outcome, Failure) else None

    def _prepared(
        self,
        task: TaskData,
        candidate: Candidate,
        checked: Checked | None,
        *,
        outputs: Mapping[str, GuardedTensor] | None = None,
        compiled: int = 0,
        note: str = "",
    ) -> PreparedCandidate:
        """checked: None for a variant that is known to be correct."""
        check = TimedRunCheck(task, outputs, self._observer)
        return PreparedCandidate(
            replace(
                candidate,
                before_checked_run=check.before,
                after_checked_run=check.after,
                at_peak_us=self._at_peak_us(task),
            ),
            check,
            checked.error if checked is not None else -1.0,
            checked.deterministic if checked is not None else None,
            compiled,
            note,
        )

    def _copies(self, task: TaskData) -> Sequence[dict[str, torch.Tensor]]:
        """Copies of the inputs for the cache policy `rotate`; none under another policy."""
        if self._cache != "rotate":
            return ()
        return task.copies(task.copies_beyond(_ROTATED_CACHES * self._cache_bytes()))

    def _cache_bytes(self) -> int:
        """The size of the last-level cache."""
        return self._device.l2_bytes

    def _measure(self, job: MeasureJob) -> Measurement:
        started = time.monotonic()
        kernel = self._kernel(job.kernel)
        self._seeds = seeds = job.protocol.seeds
        self._cache = job.protocol.cache
        self._calibration = job.calibration or self._calibration
        self._observer.begin_job()
        if job.mode is not Mode.VERIFY:
            task = self._tasks.get(job.kernel, job.workload, seeds)
            if not job.candidates:
                self._preload(task)
            return Session(self, job, task, started).compete()
        workloads = self._verify_workloads(kernel, job.workload)
        tasks = [self._tasks.get(job.kernel, workload, seeds) for workload in workloads]
        return Session(self, job, tasks[0], started).verify(tasks)

    def _kernel(self, ref: KernelRef) -> Kernel:
        if ref not in self._kernels:
            self._kernels[ref] = load(ref.spec, ref.paths)
        return self._kernels[ref]

    def _build_task(self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]) -> TaskData:
        return TaskData(self._kernel(ref), workload, seeds, self.torch_device)

    def _install(self, artifact: Artifact) -> Failure | None:
        """Install the artifact in the compiler's cache, or say why it cannot run here."""
        if artifact.target != self._device.target:
            problem = f"built for {artifact.target}, but the device is {self._device.target}"
            return Failure(Status.RUNTIME, problem)
        if different := toolchains.mismatch(artifact.toolchain, self._toolchain):
            return Failure(Status.RUNTIME, different)
        # Not by binary hash: equal binaries may have different keys in the compiler's cache.
        files = frozenset(artifact.files)
        if files not in self._installed:
            install(artifact, self._cache_dir)
            self._installed.add(files)
        return None
