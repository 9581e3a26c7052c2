"""Adopt an `@triton.autotune` kernel: its configs and keys become a search space.

See docs/search_spaces.md for a complete example.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from search_spaces.autotuned import Autotuned, take_apart
from search_spaces.checks import check_dims, tolerance_of
from search_spaces.errors import KernelError
from search_spaces.fill import fill_launch
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.records import Config, Device, Value, Workload, config_key
from search_spaces.space import Constraint, SearchSpace
from search_spaces.tensors import compiled, generator, random_tensor, torch_dtype

Specs = Mapping[str, TensorSpec]
Tensors = Mapping[str, torch.Tensor]
_RELATIVE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Adoption:
    """What `adopt` was given, under its names."""

    name: str
    workloads: tuple[Workload, ...]
    inputs: Callable[[Workload], Specs]
    outputs: Callable[[Workload], Specs]
    arguments: Callable[[Workload, Tensors], Mapping[str, Any]]
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]]
    reference: Callable[[Workload, Tensors], torch.Tensor | Tensors]
    cost: Callable[[Workload], Cost]
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    small: Mapping[str, Value]
    initial: Mapping[str, str | float]
    tolerance: Tolerance | Callable[[Workload], Tolerance] | None = None
    make_inputs: Callable[[Workload, int, str], Tensors] | None = None
    baselines: Mapping[str, Callable[[Tensors], Tensors]] = field(default_factory=dict)
    widen: bool = False


def adopt(
    autotuned: Any,
    *,
    name: str,
    workloads: Sequence[Workload],
    inputs: Callable[[Workload], Specs],
    outputs: Callable[[Workload], Specs],
    arguments: Callable[[Workload, Tensors], Mapping[str, Any]],
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]],
    reference: Callable[[Workload, Tensors], torch.Tensor | Tensors],
    cost: Callable[[Workload], Cost],
    tolerance: Tolerance | Callable[[Workload], Tolerance] | None = None,
    dims: Sequence[str] | None = None,
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    small: Mapping[str, Value] | None = None,
    initial: Mapping[str, str | float] | None = None,
    make_inputs: Callable[[Workload, int, str], Tensors] | None = None,
    baselines: Mapping[str, Callable[[Tensors], Tensors]] | None = None,
    widen: bool = False,
) -> Kernel:
    """A `Kernel` whose space holds exactly the configs of an autotuned Triton kernel.

    inputs, outputs: shapes and dtypes by name. arguments: the kernel's own arguments by name, all
    but the tuned ones and those heuristics compute. grid: as for Triton, from all arguments.
    reference: the outputs by plain torch; called with the inputs in float64 to verify, and as they
    are for the baselines `eager` and `compile`. dims: names of a workload's dims, by default the
    keys of the autotuner and `dtype`. tolerance: by default what rounding to the output's dtype
    needs. small: dims of an odd-shaped problem for the interpreter. initial: outputs that must hold
    an input's values, or a number, before the launch; those of `reset_to_zero` are known. widen:
    allow every combination of the configs' values. Raises `KernelError` for what has no place here.
    """
    parts = take_apart(autotuned, name)
    chosen = tuple(dims) if dims is not None else (*parts.tuner.keys, "dtype")
    given = Adoption(
        name=name,
        workloads=tuple(workloads),
        inputs=inputs,
        outputs=outputs,
        arguments=arguments,
        grid=grid,
        reference=reference,
        cost=cost,
        dims=chosen,
        dtypes=tuple(dtypes) if "dtype" in chosen else (),
        small=dict(small or {}),
        initial=dict(initial or {}),
        tolerance=tolerance,
        make_inputs=make_inputs,
        baselines=dict(baselines or {}),
        widen=widen,
    )
    return AdoptedKernel(parts, given)


class AdoptedKernel(Kernel):
    """A Triton kernel with what its decorator declares; made by `adopt`."""

    def __init__(self, parts: Autotuned, given: Adoption) -> None:
        self.name = given.name  # type: ignore[misc]
        self._parts = parts
        self._given = given
        if not given.workloads:
            raise KernelError(f"kernel {given.name}: no workloads", "list at least one")
        for workload in given.workloads:
            self.check_workload(workload)

    # -- the problem ---------------------------------------------------------------------------
    def workloads(self) -> Sequence[Workload]:
        return self._given.workloads

    def check_workload(self, workload: Workload) -> None:
        sizes = {dim: _LARGEST for dim in self._given.dims if dim != "dtype"}
        optional = () if "tolerance" in sizes else ("tolerance",)
        check_dims(self.name, workload, sizes=sizes, dtypes=self._given.dtypes, optional=optional)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(**self._given.small)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        if self._given.make_inputs is not None:
            return self._given.make_inputs(workload, seed, device)
        source = generator(seed, device)
        return {
            name: random_tensor(spec, source, device)
            for name, spec in self._given.inputs(workload).items()
        }

    def outputs(self, workload: Workload) -> Specs:
        return self._given.outputs(workload)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        wide = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
        }
        return self._named(workload, self._given.reference(workload, wide))

    def _named(self, workload: Workload, found: torch.Tensor | Tensors) -> Tensors:
        names = list(self.outputs(workload))
        if isinstance(found, torch.Tensor):
            found = {names[0]: found}
        if sorted(found) != sorted(names):
            raise KernelError(
                f"kernel {self.name}: its reference returns {', '.join(found)}, "
                f"its outputs are {', '.join(names)}",
                "return a mapping with one tensor per output",
            )
        return found

    def tolerance(self, workload: Workload) -> Tolerance:
        own = self._given.tolerance
        if own is not None:
            return own if isinstance(own, Tolerance) else own(workload)
        dtypes = [spec.dtype for spec in self.outputs(workload).values()]
        usual = max(_RELATIVE.get(dtype, 0.0) for dtype in dtypes)
        relative = tolerance_of(workload, usual)
        return Tolerance(relative, 8 * relative)

    def cost(self, workload: Workload) -> Cost:
        return self._given.cost(workload)

    # -- the variants --------------------------------------------------------------------------
    def space(self, workload: Workload) -> SearchSpace:
        constraints = []
        listed = {config_key(config) for config in self._parts.configs}
        if not self._given.widen:
            constraints.append(_membership(sorted(listed)))
        if getattr(self._parts.tuner, "early_config_prune", None) or getattr(
            self._parts.tuner, "perf_model", None
        ):
            constraints.append(self._pruning(workload, listed))
        return SearchSpace(self._parts.parameters(), constraints, kernel=self.name)

    def _pruning(self, workload: Workload, listed: set[str]) -> Constraint:
        arguments = self._given.arguments(workload, self._meta(workload))
        parts = self._parts

        def kept(config: Config, workload: Workload, device: Device) -> bool:
            return not parts.pruned(config, arguments, config_key(_given(config)) in listed)

        return Constraint("pruning", kept, "the kernel's own prune_configs_by drops it")

    def _meta(self, workload: Workload) -> Tensors:
        outputs = {
            name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")
            for name, spec in self.outputs(workload).items()
        }
        return {**self.make_inputs(workload, 0, "meta"), **outputs}

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The first config the kernel's own pruning keeps; Triton starts from it too."""
        bound = self.space(workload).bind(workload, device)
        for config in self._parts.configs:
            whole = {item.name: config.get(item.name) for item in bound.parameters}
            if bound.feasible(whole):
                return whole
        bound.require_feasible()
        return next(bound.enumerate())

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        given = dict(self._given.arguments(workload, tensors))
        tuned = self._parts.launch_values(config)
        computed = self._parts.constants({**given, **tuned})
        everything = {**given, **tuned, **computed}
        prepared = self._preparations(given, tensors)
        positional, keywords = self._parts.split(given)
        kwargs = {**keywords, **tuned, **computed}
        grid = tuple(self._given.grid(everything))
        return [*prepared, Launch(self._parts.fn, grid, positional, kwargs)]

    def _preparations(self, given: Mapping[str, Any], tensors: Tensors) -> list[Launch]:
        """Launches that set what the kernel adds to or updates in place."""
        starts: dict[str, str | float] = {}
        for argument in getattr(self._parts.tuner, "reset_to_zero", ()):
            starts[_tensor_name(self.name, argument, given, tensors)] = 0.0
        starts.update(self._given.initial)
        for argument in getattr(self._parts.tuner, "restore_value", ()):
            if _tensor_name(self.name, argument, given, tensors) not in starts:
                raise KernelError(
                    f"kernel {self.name}: it updates {argument} in place (restore_value)",
                    'pass it an output of its own and say initial={"output": "input"}',
                )
        return [
            fill_launch(tensors[name], tensors[start] if isinstance(start, str) else start)
            for name, start in starts.items()
        ]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """The reference in the workload's own dtypes, eager and compiled, and the user's own."""
        given, own = self._given, self.outputs(workload)

        def plain(**inputs: torch.Tensor) -> Any:
            return given.reference(workload, inputs)

        def baseline(fn: Callable[..., Any]) -> Callable[[Tensors], Tensors]:
            def run(inputs: Tensors) -> Tensors:
                found = self._named(workload, fn(**inputs))
                return {
                    name: tensor.to(torch_dtype(own[name].dtype)) for name, tensor in found.items()
                }

            return run

        usual = {"eager": baseline(plain), "compile": baseline(compiled(plain))}
        return {**usual, **given.baselines}

    # -- identity ------------------------------------------------------------------------------
    def sources(self) -> Sequence[object]:
        """The module the kernel is written in or, where it has no file, the kernel alone."""
        module = sys.modules.get(self._parts.fn.fn.__module__)
        try:
            inspect.getsource(module)  # type: ignore[arg-type]
        except (OSError, TypeError):
            return (self._parts.fn.fn,)
        return (module,)


def _given(config: Config) -> Config:
    return {name: value for name, value in config.items() if value is not None}


def _membership(listed: list[str]) -> Constraint:
    known = listed  # a plain list, so that it enters the constraint's digest

    def is_listed(config: Config, workload: Workload, device: Device) -> bool:
        return config_key(_given(config)) in known

    return Constraint("listed", is_listed, "it is none of the kernel's own configs")


def _tensor_name(kernel: str, argument: str, given: Mapping[str, Any], tensors: Tensors) -> str:
    """The name under which the harness knows the tensor passed as a kernel's argument."""
    for name, tensor in tensors.items():
        if tensor is given.get(argument):
            return name
    raise KernelError(
        f"kernel {kernel}: reset_to_zero or restore_value names {argument}, "
        "which is passed no tensor of inputs or outputs",
        "pass the tensor itself, not a view of it",
    )
