"""The base class of the backends whose tensors are torch's."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.kernel import Kernel
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.tracing import span
from workers import backend_kinds
from workers import toolchain as toolchains
from workers.compiling import install
from workers.job_records import (
    Artifact,
    Calibration,
    Check,
    Failure,
    KernelRef,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
    PartKind,
    PartResult,
    PreparationPart,
    RowRange,
)
from workers.measure.compile_only import (
    NeedsCompilation,
    compile_only,
    import_compiler,
    in_background_thread,
    without_compiling,
)
from workers.measure.failure_values import failure_of
from workers.measure.gate.buffers import GuardedTensor
from workers.measure.gate.checks import check_variant
from workers.measure.gate.run_observer import RunObserver
from workers.measure.gate.timed_run_check import TimedRunCheck
from workers.measure.measurement_session import MeasurementSession
from workers.measure.monitor import Monitor
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import Checked, TaskCache, TaskTensors
from workers.measure.timers.timer import Candidate, Timer, WarmUp
from workers.processes.kernel_loading import load_kernel

if TYPE_CHECKING:
    import torch

#: A baseline may be this many times less accurate than a variant: it is what a user runs today, and
#: its calls round their intermediate results to the dtype. Other results are still refused.
_BASELINE_SLACK = 4.0
#: A baseline is called this often before its check, while the calls take less than the time.
_WARM_CALLS, _WARM_S = 3, 0.05
#: The largest share of the device's memory that inputs and references of kept tasks take; the
#: standby process has as much.
_TASKS_SHARE = 0.2
#: The share of the device's memory that a process may hold between jobs without using it: what the
#: last job's references and baselines took, which the standby process may need.
_UNUSED_SHARE = 0.05
#: How many tasks of check sizes are kept. They are small.
_CHECK_SIZES = 8
#: The copies of the cache policy `rotate` are together this many times the last-level cache.
_ROTATED_CACHES = 5
#: Shorter steps of opening a device are in no trace.
_LEAST_S = 0.005


class TorchBackend(ABC):
    """Kernels, tasks and artifacts of one device; subclasses launch and time variants.

    Implements `workers.roles.Backend` and `SessionBackend`. index: number of the device.
    cache_dir: where artifacts are installed. tasks: the most tasks that keep their tensors on the
    device, within a share of its memory.
    """

    kind: str
    #: Torch's name of the device.
    torch_device: ClassVar[str]

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 8
    ) -> None:
        self.poisoned = False
        #: None until it is measured or comes with a job.
        self._calibration: Calibration | None = None
        self._cache = MeasurementProtocol().cache
        #: What the current job demands of bits.
        self._numerics = MeasurementProtocol().numerics
        #: The rows whose bits variants must keep, and the workload where they do.
        self._rows: tuple[RowRange | None, Workload | None] = None, None
        # Its snapshot of the harness must precede the first kernel's module.
        self._observer = RunObserver()
        self._seeds = MeasurementProtocol().seeds
        with span("read the device's facts", "start", least_s=_LEAST_S):
            self._device = backend_kinds.spec(self.kind).detect(index)
        with span("read the toolchain's versions", "start", least_s=_LEAST_S):
            self._toolchain = backend_kinds.spec(self.kind).toolchain()
        self._cache_dir = Path(cache_dir)
        self._installed: set[frozenset[str]] = set()
        self._kernels: dict[KernelRef, Kernel] = {}
        most_bytes = self._device.memory_bytes * _TASKS_SHARE or math.inf
        self._tasks = TaskCache(self._build_task, tasks, most_bytes)
        self._check_sizes = TaskCache(self._build_task, _CHECK_SIZES)
        self._warm_up = WarmUp()
        #: The processors of this process before its launching thread is bound to one.
        self._cores = os.sched_getaffinity(0)

    # -- the Backend role ----------------------------------------------------------------------
    def info(self) -> tuple[Device, Toolchain]:
        return self._device, self._toolchain

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        try:
            with self._settings():
                return self._measure(job)
        except Exception as error:
            return self._make_failure(error, f"kernel `{job.kernel.spec}`")
        finally:
            self._tasks.drop_suspects()
            self._check_sizes.drop_suspects()
            self._release_unused_memory(_UNUSED_SHARE)

    def prepare_part(self, job: MeasureJob, part: PreparationPart) -> PartResult:
        """Do a part of preparing the confirmation of a job's task. No variant is launched.

        The result is kept with the task until its confirmation. An error is left for the
        confirmation to report.
        """
        try:
            with self._settings():
                return self._prepare_part(job, part)
        except NeedsCompilation:
            return PartResult(done=False, compile_first=(part.baseline,))
        except Exception as error:
            self._make_failure(error)
            return PartResult(done=False)
        finally:
            self._release_unused_memory(0.0)

    def close(self) -> None:
        self._clear_tasks()

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
        self, task: TaskTensors, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure: ...

    @abstractmethod
    def timer(
        self, protocol: MeasurementProtocol, prepared: Sequence[PreparedCandidate]
    ) -> Timer: ...

    @abstractmethod
    def plain_timer(self, protocol: MeasurementProtocol) -> Timer: ...

    def monitor(self) -> AbstractContextManager[Monitor]:
        return Monitor(None)

    def roofline_us(self, task: TaskTensors, cache: str) -> float:
        return 0.0

    def _at_peak_us(self, task: TaskTensors) -> float | None:
        """Time of the task's arithmetic at the matrix peak in us, None when unknown."""
        return None

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        """The workloads that a variant is checked on when it is not timed."""
        return (workload,)

    def _calibrate(self) -> Calibration | None:
        return None

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Torch's settings during a job."""
        import torch

        with torch.no_grad():
            yield

    def _enter_thread(self) -> None:  # noqa: B027
        """Make the device current in a new thread."""

    def _has_room(self) -> bool:
        """Whether there is memory for a task that is not measured yet."""
        return True

    def _release_unused_memory(self, share: float) -> None:  # noqa: B027
        """Give memory back that this process holds without using it, if it is more than this share
        of the device's."""

    def _enter_baseline(self) -> None:  # noqa: B027
        """Untimed switch to a baseline, such as its thread count."""

    def _preload(self, task: TaskTensors) -> None:  # noqa: B027
        """Load in advance what the first variant of the task needs."""

    def _make_failure(self, error: Exception, doing: str = "") -> Failure:
        """The failure of an exception. A subclass sets `poisoned` here if the device is lost."""
        return failure_of(error, doing=doing)

    # -- shared -------------------------------------------------------------------------------
    def prepare_baseline(self, task: TaskTensors, name: str) -> PreparedCandidate | Failure:
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
            if self._is_checked(task, name):
                run()  # the memory of its outputs may have been released
                checked: Checked | Failure = task.checked_baselines[name]
            else:
                checked = self._check_baseline(task, name)
        except Exception as problem:
            return self._make_failure(problem, f"baseline `{name}`")
        if isinstance(checked, Failure):
            return checked
        rotations = tuple(partial(function, inputs) for inputs in self._copies(task))
        candidate = Candidate(
            name, run, enter=self._enter_baseline, rotations=rotations, baseline=True
        )
        return self._make_prepared(task, candidate, checked)

    def _is_checked(self, task: TaskTensors, name: str) -> bool:
        """Whether a baseline is known to be correct and, where that counts, to repeat its bits."""
        known = task.checked_baselines.get(name)
        return known is not None and (bool(known.deterministic) or not self._repeats_baselines)

    def _check_baseline(self, task: TaskTensors, name: str) -> Checked | Failure:
        """Warm a baseline up and check it. A result that is correct is kept with the task."""
        function = task.baselines[name]
        started = time.monotonic()
        for _ in range(_WARM_CALLS):
            function(task.inputs)
            self._observer.synchronize()
            if time.monotonic() - started > _WARM_S:
                break
        checked = check_variant(
            task,
            lambda: function(task.inputs),
            repeat=self._repeats_baselines,
            edges=False,
            same_bits=self._repeats_baselines,
            slack=_BASELINE_SLACK,
        )
        if isinstance(checked, Checked):
            task.checked_baselines[name] = checked
        return checked

    @property
    def _repeats_baselines(self) -> bool:
        """Whether baselines must repeat their bits. Tables name none under `batch_invariant`."""
        return self._numerics == "deterministic"

    def _demand_bits(self, task: TaskTensors) -> dict[str, Any]:
        """What the gate demands of the bits of a variant."""
        rows, workload = self._rows
        return {
            "same_bits": self._numerics != "any",
            "rows": rows if task.workload == workload else None,
        }

    def _keep_to(self, job: MeasureJob) -> None:
        self._cache, self._numerics = job.protocol.cache, job.protocol.numerics
        self._rows = job.rows, job.workload

    def _prepare_part(self, job: MeasureJob, part: PreparationPart) -> PartResult:
        from search_spaces.tensors import is_compiled

        self._keep_to(job)
        self._calibration = job.calibration or self._calibration
        key = (job.kernel, job.workload, job.protocol.seeds)
        if part.kind is PartKind.IMPORT:
            return PartResult(in_background_thread(import_compiler, self._cores))
        if part.kind is PartKind.TASK:
            if not self._has_room():
                return PartResult(done=False)
            task = self._tasks.get(*key)
            self._preload(task)
            compiled = (name for name in job.upcoming_baselines if name in task.baselines)
            return PartResult(True, tuple(n for n in compiled if is_compiled(task.baselines[n])))
        known = self._tasks.get_kept(*key)
        if known is None or part.baseline not in known.baselines:
            return PartResult(done=False)
        if part.kind is PartKind.COMPILE:
            return PartResult(self._compile_baseline(known, part.baseline))
        if not self._is_checked(known, part.baseline):
            self._enter_baseline()
            with without_compiling():
                self._check_baseline(known, part.baseline)
        return PartResult(done=True)

    def _compile_baseline(self, task: TaskTensors, name: str) -> bool:
        import torch

        def compile_it() -> bool:
            # Gradients, the device and the number of threads are settings of a thread.
            with torch.no_grad():
                self._enter_thread()
                self._enter_baseline()
                return compile_only(lambda: task.baselines[name](task.inputs))

        return in_background_thread(compile_it, self._cores)

    def check(self, ref: KernelRef, check: Check) -> PreparedCandidate | Failure:
        """Run the whole gate on an artifact of another workload.

        The seeds are those of the current job. Nothing is timed.
        """
        try:
            task = self._check_sizes.get(ref, check.workload, self._seeds)
            return self.prepare(task, check.artifact, check=True)
        except Exception as error:
            return self._make_failure(error)

    def _make_prepared(
        self,
        task: TaskTensors,
        candidate: Candidate,
        checked: Checked | None,
        *,
        outputs: Mapping[str, GuardedTensor] | None = None,
        compiled: int = 0,
        note: str = "",
    ) -> PreparedCandidate:
        """checked: None for a variant that is known to be correct."""
        slack = _BASELINE_SLACK if candidate.baseline else 1.0
        check = TimedRunCheck(task, outputs, self._observer, slack)
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
            checked.row_bits if checked is not None else None,
            compiled,
            note,
        )

    def _copies(self, task: TaskTensors) -> Sequence[dict[str, torch.Tensor]]:
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
        self._keep_to(job)
        self._calibration = job.calibration or self._calibration
        self._observer.begin_job()
        if job.mode is not Mode.VERIFY:
            task = self._tasks.get(job.kernel, job.workload, seeds)
            if not job.candidates:
                with span("load what the gate calls", "verify", least_s=_LEAST_S):
                    self._preload(task)
            return MeasurementSession(self, job, task, started).compete()
        first, *others = self._verify_workloads(kernel, job.workload)
        tasks = [self._tasks.get(job.kernel, first, seeds)]
        tasks += [self._check_sizes.get(job.kernel, workload, seeds) for workload in others]
        return MeasurementSession(self, job, tasks[0], started).verify(tasks)

    def _clear_tasks(self, keep: TaskTensors | None = None) -> None:
        """Forget all tasks but one, to free memory."""
        self._tasks.clear_all_but(keep)
        self._check_sizes.clear_all_but(keep)

    def _kernel(self, ref: KernelRef) -> Kernel:
        if ref not in self._kernels:
            self._kernels[ref] = load_kernel(ref)
        return self._kernels[ref]

    def _build_task(
        self, ref: KernelRef, workload: Workload, seeds: tuple[int, ...]
    ) -> TaskTensors:
        return TaskTensors(self._kernel(ref), workload, seeds, self.torch_device)

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
