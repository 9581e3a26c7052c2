"""The arguments of `adopt`: facts about a kernel that its decorators do not state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from search_spaces.errors import KernelError
from search_spaces.kernel import Cost, Tolerance
from search_spaces.records import TensorSpec, Value, Workload
from search_spaces.source_positions import within
from search_spaces.tensors import generator, random_tensor

Specs: TypeAlias = Mapping[str, TensorSpec]
Tensors: TypeAlias = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Adoption:
    """What `adopt` was given, under its names."""

    #: The kernel's name in campaigns, tables and reports.
    name: str
    #: The problems that are tuned when a campaign names none.
    workloads: tuple[Workload, ...]
    #: Shapes and dtypes of the inputs; None where `make_inputs` says all.
    inputs: Callable[[Workload], Specs] | None
    #: Shapes and dtypes of what the kernel writes.
    outputs: Callable[[Workload], Specs]
    #: The kernel's own arguments, of workload, tensors and, if it takes a third one, config.
    arguments: Callable[..., Mapping[str, Any]]
    #: Triton's grid, a function of all arguments.
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]]
    #: The outputs by plain torch.
    reference: Callable[[Workload, Tensors], torch.Tensor | Tensors]
    #: The least work of the problem; None: inputs and outputs moved once.
    cost: Callable[[Workload], Cost] | None
    #: Names of a workload's dims.
    dims: tuple[str, ...]
    #: What the dim `dtype` may be; empty without that dim.
    dtypes: tuple[str, ...]
    #: Dims that make a workload small and odd-shaped.
    small: Mapping[str, Value]
    #: What outputs and scratch hold before the launch: an input's values or a number.
    initial: Mapping[str, str | float | None]
    #: How far off is right; None: what rounding to the output's dtype needs.
    tolerance: Tolerance | Callable[[Workload], Tolerance] | None = None
    #: Inputs of workload, seed and device, where random ones by `inputs` will not do.
    make_inputs: Callable[[Workload, int, str], Tensors] | None = None
    #: Limits of integer inputs: from the first up to below the second.
    ranges: Callable[[Workload], Mapping[str, tuple[int, int]]] | None = None
    #: Work space of workload and config.
    scratch: Callable[[Workload, Mapping[str, Any]], Specs] | None = None
    #: What users run instead, in addition to the reference itself.
    baselines: Mapping[str, Callable[[Tensors], Tensors]] = field(default_factory=dict)
    #: Whether every combination of the configs' values may be tried.
    widen: bool = False

    def __post_init__(self) -> None:
        if not self.workloads:
            raise KernelError(f"kernel {self.name}: no workloads", "list at least one")
        if self.inputs is None and self.make_inputs is None:
            raise KernelError(
                f"kernel {self.name}: neither inputs nor make_inputs is given",
                "give inputs=, which returns shapes and dtypes by name, or make_inputs=",
            )

    def list_known_values(self) -> dict[str, list[Value]]:
        """Values of each dim but `dtype` in the listed workloads, and in the small ones."""
        dims = [name for name in self.dims if name != "dtype"]
        listed = [w for w in self.workloads if all(name in w for name in dims)]
        found = {name: [workload[name] for workload in listed] for name in dims}
        for name, value in self.small.items():
            if name in found:
                found[name].append(value)
        return {name: values or [1] for name, values in found.items()}

    def arguments_of(
        self, workload: Workload, tensors: Tensors, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The kernel's arguments for a config, which is given by its values at the launch."""
        with within("adopt(arguments=...)"):
            if len(inspect.signature(self.arguments).parameters) > 2:
                return dict(self.arguments(workload, tensors, values))
            return dict(self.arguments(workload, tensors))

    def tensors(self, workload: Workload, seed: int, device: str) -> Tensors:
        """The inputs, on a device."""
        if self.make_inputs is not None:
            return self.make_inputs(workload, seed, device)
        assert self.inputs is not None
        source = generator(seed, device)
        limits = self.ranges(workload) if self.ranges else {}
        return {
            name: random_tensor(spec, source, device, limits=limits.get(name, (0, 128)))
            for name, spec in self.inputs(workload).items()
        }
