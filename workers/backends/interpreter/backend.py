"""Triton's interpreter: verifies Triton variants on a machine without a GPU and times nothing."""

from __future__ import annotations

import inspect
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from search_spaces.absent_device.module_sets import modules_of
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel, Launch
from search_spaces.records import Config, Device, Workload
from workers.backends.interpreter.arithmetic import extend, uninterpretable
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

# -- what the interpreter computes in a variant, so that variants with equal launches run once -----
# Compiler options such as `num_warps` and `num_stages` reach a kernel only where it has parameters
# of these names. Configs that differ in nothing else are one computation on the same tensors.
_PLAIN = (bool, int, float, str, type(None))


def computation(launches: Sequence[Launch], tensors: Mapping[str, torch.Tensor]) -> Hashable:
    """A key that is equal for launches that compute the same on these tensors.

    None where it cannot be told: for a function with other decorators than `triton.jit`, for an
    argument that is no plain value, and for a tensor outside the memory of `tensors`, whose
    contents may differ.
    """
    from triton.runtime.interpreter import InterpretedFunction

    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    keys = []
    for launch in launches:
        if type(launch.fn) is not InterpretedFunction:
            return None
        names = inspect.getfullargspec(launch.fn.fn).args
        passed = [*zip(names, launch.args, strict=False)]
        passed += [item for item in sorted(launch.kwargs.items()) if item[0] in names]
        values = [_value(value, memory) for _, value in passed]
        if None in values or len(launch.args) > len(names):
            return None
        given = tuple(zip((name for name, _ in passed), values, strict=True))
        keys.append((launch.fn, tuple(launch.grid), given))
    return tuple(keys)


def _value(value: Any, memory: Iterable[int]) -> Hashable:
    """A plain value with its type, or a tensor's place and layout; None for anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.untyped_storage().data_ptr() not in memory:
            return None
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype
    # By their text: -0.0 equals 0.0.
    return (type(value), repr(value)) if type(value) in _PLAIN else None


# -- triton's interpreter --------------------------------------------------------------------------
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
