"""Triton's interpreter: verifies Triton variants on a machine without a GPU and times nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.absent_device.module_sets import modules_of
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, Workload
from workers.backends.interpreter.arithmetic import extend, uninterpretable
from workers.backends.interpreter.launched import computation
from workers.device import offline
from workers.job_records import (
    Artifact,
    Failure,
    MeasureJob,
    Measurement,
    MeasurementProtocol,
    Mode,
)
from workers.measure.gate.checks import check_variant
from workers.measure.session_backend import PreparedCandidate
from workers.measure.task_tensors import Checked, TaskTensors
from workers.measure.timers.timer import Candidate, Timer
from workers.measure.torch_backend import TorchBackend
from workers.measure.triton_launch import WritingVariant, bind

if TYPE_CHECKING:
    import torch


class InterpreterBackend(TorchBackend):
    """Runs a variant's launches on CPU tensors of the kernel's small workload.

    It verifies a job whatever the job's mode, and times nothing. It uses an artifact's config only:
    the binary does not run, so its machine code stays unverified. Variants whose launches differ in
    compiler options only are checked once. A variant that the interpreter cannot run has an
    unchecked outcome whose note names the operation. Raises `TunerError` when the process was not
    started with `TRITON_INTERPRET=1`.
    """

    kind = "interpreter"
    torch_device = "cpu"

    def __init__(
        self, *, index: int = 0, cache_dir: str | os.PathLike[str], tasks: int = 8
    ) -> None:
        import torch
        from threadpoolctl import threadpool_limits

        if os.environ.get("TRITON_INTERPRET") != "1":
            raise TunerError(
                "the interpreter backend needs TRITON_INTERPRET=1 before Python starts",
                "start its process with the variables of workers.backend_kinds.environment",
            )
        extend()
        # Tensors are small here. Threads of torch, and of numpy's linear algebra, would wait for
        # one another at each operation, and longest while builders occupy all processors.
        torch.set_num_threads(1)
        threadpool_limits(1, user_api="blas")
        super().__init__(index=index, cache_dir=cache_dir, tasks=tasks)
        self._targets: set[str] = set()

    def measure(self, job: MeasureJob) -> Measurement | Failure:
        with modules_of(self._built_for(job)):
            found = super().measure(replace(job, mode=Mode.VERIFY))
        if isinstance(found, Failure):
            return found
        return replace(found, method="interpreter", cache="")

    def _built_for(self, job: MeasureJob) -> Device | None:
        """The device that the candidates were built for, as the kernel's modules see it."""
        targets = {candidate.target for candidate in job.candidates}
        if targets != self._targets:
            self._kernels.clear()
            self._clear_tasks()
            self._targets = targets
        try:
            return offline(next(iter(targets))) if len(targets) == 1 else None
        except TunerError:
            return None

    def prepare(
        self, task: TaskTensors, artifact: Artifact, *, check: bool
    ) -> PreparedCandidate | Failure:
        variant: WritingVariant | None = None
        checked: Checked | Failure | None
        try:
            variant = bind(task, artifact.config)
            tensors = _tensors(task, artifact.config, variant)
            launches = task.kernel.launches(task.workload, artifact.config, tensors)
            if foreign := _compiled_only(launches):
                return self._prepare_unchecked(task, variant, f"cannot be interpreted: {foreign}")
            key = computation(launches, tensors)
            checked = task.checked_computations.get(key)
            if checked is None:
                checked = self._check(task, variant)
                if key is not None and isinstance(checked, Checked):
                    task.checked_computations[key] = checked
        except Exception as problem:
            if (limit := uninterpretable(problem)) and variant is not None:
                return self._prepare_unchecked(task, variant, f"cannot be interpreted: {limit}")
            return self._make_failure(problem)
        if isinstance(checked, Failure):
            return checked
        candidate = Candidate(task.kernel.name, variant.run)
        return self._make_prepared(task, candidate, checked, outputs=variant.outputs)

    def _check(self, task: TaskTensors, variant: WritingVariant) -> Checked | Failure:
        import numpy

        # A GPU gives no warning for infinities and NaN; the gate detects them.
        with numpy.errstate(all="ignore"):
            return check_variant(
                task, variant.run, outputs=variant.outputs, scratch=variant.scratch
            )

    def _prepare_unchecked(
        self, task: TaskTensors, variant: WritingVariant, note: str
    ) -> PreparedCandidate:
        task.load(0)
        candidate = Candidate(task.kernel.name, variant.run)
        return self._make_prepared(task, candidate, None, outputs=variant.outputs, note=note)

    def timer(self, constants: MeasurementProtocol, entries: Sequence[PreparedCandidate]) -> Timer:
        raise TypeError("the interpreter does not time")

    def plain_timer(self, constants: MeasurementProtocol) -> Timer:
        raise TypeError("the interpreter does not time")

    def _verify_workloads(self, kernel: Kernel, workload: Workload) -> Sequence[Workload]:
        return (kernel.small_workload(workload),)


def _tensors(task: TaskTensors, config: Config, variant: WritingVariant) -> dict[str, torch.Tensor]:
    """The tensors that the variant's launches are bound to, by name."""
    tensors = dict(task.inputs) | {name: out.tensor for name, out in variant.outputs.items()}
    scratch = task.kernel.scratch(task.workload, config)
    return tensors | {name: out.tensor for name, out in zip(scratch, variant.scratch, strict=True)}


def _compiled_only(launches: Sequence[Launch]) -> str:
    """The function of a variant that is written in Gluon, which has no interpreter; or nothing."""
    for launch in launches:
        if getattr(launch.fn, "is_gluon", bool)():
            return f"{launch.fn.__name__} is written in Gluon, which runs on GPUs only"
    return ""
