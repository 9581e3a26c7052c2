"""A recorded space as a kernel: replayed by the backend `simulated`, searched like any other."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, ClassVar

from search_spaces.constraints import Constraint
from search_spaces.errors import KernelError, TunerError, WorkloadError
from search_spaces.kernel import Cost, Kernel, Tolerance
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo, Restricted
from search_spaces.recorded.entries import Noise, RecordedConfig, RecordedParameter
from search_spaces.recorded.recorded_space import RecordedSpace, encode
from search_spaces.records import Config, Device, TensorSpec, Workload, digest
from search_spaces.space import Features, SearchSpace

if TYPE_CHECKING:
    from search_spaces.tensors import Tensors

__all__ = [
    "Noise",
    "RecordedConfig",
    "RecordedKernel",
    "RecordedParameter",
    "RecordedSpace",
    "load_kernel",
]


def load_kernel(path: str | PathLike[str]) -> RecordedKernel:
    """The kernel a recorded file replays; its `spec` is `recorded:FILE`. Raises TunerError."""
    kernel = RecordedKernel(RecordedSpace.load(path))
    kernel.spec = f"recorded:{path}"
    return kernel


class RecordedKernel(Kernel):
    """A kernel of which only times are known: one workload, and no code, inputs or outputs.

    Its search space holds exactly the recorded configs.
    """

    kinds: ClassVar[tuple[str, ...]] = ("simulated",)

    def __init__(self, recorded: RecordedSpace) -> None:
        self.recorded = recorded
        # An instance's own name: one class stands for every recorded kernel.
        object.__setattr__(self, "name", recorded.kernel)

    @cached_property
    def device(self) -> Device:
        """The recorded device as the one to simulate: the same facts, of kind `simulated`."""
        return replace(self.recorded.device, kind="simulated")

    def workloads(self) -> Sequence[Workload]:
        return (self.recorded.workload,)

    def check_workload(self, workload: Workload) -> None:
        if workload != self.recorded.workload:
            raise WorkloadError(
                f"kernel {self.name}: {workload.key} was not recorded",
                f"the recording holds {self.recorded.workload.key} alone",
            )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        return {}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {}

    def tolerance(self, workload: Workload) -> Tolerance:
        return Tolerance(self.recorded.tolerance, self.recorded.tolerance)

    def cost(self, workload: Workload) -> Cost:
        return Cost(self.recorded.flops, self.recorded.bytes)

    def space(self, workload: Workload) -> SearchSpace:
        recorded = self.recorded

        def was_recorded(config: Config, workload: Workload, device: Device) -> bool:
            return config in recorded

        rule = Constraint("recorded", was_recorded, "nothing was recorded for it")
        parameters = [_parameter(parameter) for parameter in recorded.parameters]
        return SearchSpace(parameters, (rule,), kernel=self.name, features=_features(recorded))

    def default_config(self, workload: Workload, device: Device) -> Config:
        return self.recorded.default

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        return dict.fromkeys(self.recorded.baselines, self._not_here)

    def _not_here(self, inputs: Tensors) -> Tensors:
        raise KernelError(
            f"kernel {self.name} is a recording and cannot be run", "use the simulated backend"
        )

    def launch_hash(self) -> str:
        """A digest of everything recorded: another recording is another kernel."""
        return self._hash

    def kernel_hashes(self) -> tuple[str, ...]:
        return ()

    @cached_property
    def _hash(self) -> str:
        return digest(encode(self.recorded))


def _features(recorded: RecordedSpace) -> Features | None:
    """The features that the family's `space.py` declares, where they fit the recording."""
    module = f"search_spaces.kernels.{recorded.kernel}.space"
    if not recorded.kernel.isidentifier():
        return None
    try:
        found: Features | None = getattr(importlib.import_module(module), "features", None)
    except ModuleNotFoundError:
        return None
    try:
        if found is not None:
            found(recorded.default, recorded.workload, recorded.device)
    except (LookupError, ValueError, TypeError, TunerError):
        return None  # another kernel of the same name, or an older one
    return found


def _parameter(recorded: RecordedParameter) -> Parameter:
    """The declared parameter, narrowed to the values that were recorded."""
    name, values = recorded.name, recorded.values
    when = dict(recorded.when) or None
    base: Parameter
    if recorded.kind == "boolean":
        base = Boolean(name, when)
    elif recorded.kind == "choice":
        return Choice(name, values, when)
    else:
        numbers = sorted(value for value in values if type(value) is int)
        if len(numbers) < len(values):
            raise KernelError(f"parameter {name}: not all of {list(values)} are integers")
        kind = PowerOfTwo if recorded.kind == "power_of_two" else Integer
        base = kind(name, numbers[0], numbers[-1], when=when)
        values = tuple(numbers)
        for value in values:
            if not base.contains(value):
                raise KernelError(f"parameter {name}: {value} is not a {recorded.kind}")
    return base if base.values() == values else Restricted(base, values)
