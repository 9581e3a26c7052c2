"""Adopt an `@triton.autotune` kernel: its configs and keys become a search space.

See docs/search_spaces.md for a complete example.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from search_spaces.absent_device.fake_driver import answering_if_used
from search_spaces.adoption.autotuned import (
    AutotuneParts,
    given_values,
    take_apart,
    under_autotuner,
)
from search_spaces.adoption.facts import Adoption, Specs, Tensors
from search_spaces.dims import check_kinds
from search_spaces.errors import KernelError
from search_spaces.fill import fill_launch
from search_spaces.kernel import Cost, Kernel, Launch, Tolerance
from search_spaces.records import Config, Device, Value, Workload, config_key
from search_spaces.shape_tensor import torch_dtype
from search_spaces.source_positions import within
from search_spaces.space import Constraint, SearchSpace
from search_spaces.tensors import compiled, empty_tensors, widen

_DTYPES = ("float32", "float16", "bfloat16")


def adopt(
    autotuned: Any,
    *,
    name: str,
    workloads: Sequence[Workload],
    outputs: Callable[[Workload], Specs],
    arguments: Callable[..., Mapping[str, Any]],
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]],
    reference: Callable[[Workload, Tensors], torch.Tensor | Tensors],
    cost: Callable[[Workload], Cost] | None = None,
    inputs: Callable[[Workload], Specs] | None = None,
    tolerance: Tolerance | Callable[[Workload], Tolerance] | None = None,
    dims: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    small: Mapping[str, Value] | None = None,
    initial: Mapping[str, str | float | None] | None = None,
    make_inputs: Callable[[Workload, int, str], Tensors] | None = None,
    ranges: Callable[[Workload], Mapping[str, tuple[int, int]]] | None = None,
    scratch: Callable[[Workload, Mapping[str, Any]], Specs] | None = None,
    baselines: Mapping[str, Callable[[Tensors], Tensors]] | None = None,
    keywords: Sequence[str] = (),
    configs: Sequence[Any] | None = None,
    key: Sequence[str] = (),
    widen: bool = False,
) -> Kernel:
    """A `Kernel` whose space holds exactly the configs of an autotuned Triton kernel.

    inputs, outputs: shapes and dtypes by name.
    arguments: the kernel's arguments by name, except the tuned ones and those that heuristics
    compute; from workload, tensors and, where it has a third parameter, config.
    grid: as for Triton, from all arguments.
    reference: the outputs by plain torch; called with the inputs in float64 to verify, and with
    the inputs as they are for the baselines `eager` and `compile`.
    cost: the least work of a workload; by default that of `Kernel.cost`.
    tolerance: by default the rounding error of the outputs' dtypes.
    dims: names of a workload's dims, by default the keys of the autotuner and `dtype`; each takes
    the kinds of values that it has in `workloads`.
    dtypes: what `dtype` may be, in addition to those in `workloads`.
    small: dims of an odd-shaped problem for the interpreter.
    initial: outputs and scratch that must hold an input's values, or a number, before the launch;
    those of `reset_to_zero` are known.
    make_inputs: in place of `inputs`, from workload, seed and device.
    ranges: limits of integer inputs.
    scratch: work space, from workload and config.
    baselines: further baselines by name, from inputs to outputs.
    keywords: arguments that the library passes by keyword, for pruners.
    configs, key: those of a kernel without an autotuner.
    widen: allow every combination of the configs' values.
    Raises `KernelError` for a kernel that cannot be adopted.
    """
    if configs is not None:
        autotuned = under_autotuner(autotuned, configs, key, name)
    parts = take_apart(autotuned, name, keywords)
    chosen = tuple(dims) if dims is not None else (*parts.tuner.keys, "dtype")
    listed = [w.text("dtype") for w in workloads if "dtype" in w]
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
        dtypes=tuple(dict.fromkeys([*(dtypes or _DTYPES), *listed])) if "dtype" in chosen else (),
        small=dict(small or {}),
        initial=dict(initial or {}),
        tolerance=tolerance,
        make_inputs=make_inputs,
        ranges=ranges,
        scratch=scratch,
        baselines=dict(baselines or {}),
        widen=widen,
    )
    return AdoptedKernel(parts, given)


class AdoptedKernel(Kernel):
    """A Triton kernel with what its decorator declares; made by `adopt`."""

    def __init__(self, parts: AutotuneParts, given: Adoption) -> None:
        self.name = given.name  # type: ignore[misc]
        self._parts = parts
        self._given = given
        for workload in given.workloads:
            self.check_workload(workload)

    @property
    def parts(self) -> AutotuneParts:
        """The kernel under its decorators."""
        return self._parts

    @property
    def place(self) -> str:
        """Where its library has the kernel, as `module:object`; empty where it is elsewhere."""
        base = self._parts.fn.fn
        found: Any = sys.modules.get(base.__module__)
        for part in base.__qualname__.split("."):
            found = getattr(found, part, None)
        while found is not None and found is not base:
            found = getattr(found, "fn", None)
        return "" if found is None else f"{base.__module__}:{base.__qualname__}"

    # -- the problem ---------------------------------------------------------------------------
    def workloads(self) -> Sequence[Workload]:
        return self._given.workloads

    def check_workload(self, workload: Workload) -> None:
        known = self._given.list_known_values()
        optional = () if "tolerance" in known else ("tolerance",)
        check_kinds(self.name, workload, known=known, dtypes=self._given.dtypes, optional=optional)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(**self._given.small)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        return self._given.tensors(workload, seed, device)

    def outputs(self, workload: Workload) -> Specs:
        return self._given.outputs(workload)

    def scratch(self, workload: Workload, config: Config) -> Specs:
        own = self._given.scratch
        return {} if own is None else own(workload, self._parts.launch_values(config))

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return self._name_outputs(workload, self._given.reference(workload, widen(inputs)))

    def _name_outputs(self, workload: Workload, found: torch.Tensor | Tensors) -> Tensors:
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
        if own is None:
            return super().tolerance(workload)
        return own if isinstance(own, Tolerance) else own(workload)

    def cost(self, workload: Workload) -> Cost:
        return (self._given.cost or super().cost)(workload)

    # -- the variants --------------------------------------------------------------------------
    def _parts_for(self, workload: Workload) -> AutotuneParts:
        """The kernel with the keywords of the calls of a workload."""
        return self._parts

    def space(self, workload: Workload) -> SearchSpace:
        whole, arguments = self._parts_for(workload), self._arguments_on_meta(workload)
        parts = whole
        own = {config_key(config) for config in parts.configs}
        try:
            kept = parts.apply_pruner(arguments, self._given.grid)
        except KernelError:
            kept = parts  # Such as one that asks for the device: the constraint will ask again.
        if any(config_key(config) not in own for config in kept.configs):
            parts = kept
        constraints = []
        if not self._given.widen:
            constraints.append(_membership(sorted(config_key(c) for c in parts.configs)))
        if parts.pruner is not None or parts.model is not None:
            check = _Pruning(whole, arguments, self._given.grid)
            reason = "the kernel's own prune_configs_by drops it"
            constraints.append(Constraint("pruning", check, reason))
        return SearchSpace(parts.parameters(), constraints, kernel=self.name)

    def declares(self, config: Config) -> bool:
        """A library's own configs are right wherever its pruning keeps them, other combinations
        where they were run."""
        own = ({name: item.get(name) for name in config} for item in self._parts.configs)
        return not self._given.widen or config_key(config) in map(config_key, own)

    def _arguments_on_meta(self, workload: Workload) -> dict[str, Any]:
        """The kernel's arguments without contents, for a pruner; they do not depend on a config
        where Triton prunes, so those of the first one are taken."""
        if self._parts.pruner is None and self._parts.model is None:
            return {}
        first = self._parts.configs[0]
        specs = {**self.outputs(workload), **self.scratch(workload, first)}
        tensors = {**self.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}
        return self._given.arguments_of(workload, tensors, self._parts.launch_values(first))

    def listed_configs(self, workload: Workload, device: Device) -> Sequence[Config]:
        """The kernel's own configs that its pruning keeps, in its order."""
        bound = self.space(workload).bind(workload, device)
        names = [parameter.name for parameter in bound.parameters]
        parts = self._parts_for(workload)
        pruned = parts.apply_pruner(self._arguments_on_meta(workload), self._given.grid)
        whole = [{name: config.get(name) for name in names} for config in pruned.configs]
        return [config for config in whole if bound.feasible(config)]

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The first config the kernel's own pruning keeps; Triton starts from it too."""
        listed = self.listed_configs(workload, device)
        if listed:
            return listed[0]
        bound = self.space(workload).bind(workload, device)
        bound.require_feasible()
        return next(bound.enumerate())

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        tuned = self._parts.launch_values(config)
        given = self._given.arguments_of(workload, tensors, tuned)
        with within("a heuristic"):
            computed = self._parts.constants(given, tuned)
        everything = {**given, **tuned, **computed}
        prepared = self._preparations(workload, given, tensors)
        positional, keywords = self._parts.split(given)
        kwargs = {**keywords, **tuned, **computed}
        with within(f"adopt(grid=...), which is given {', '.join(everything)}"):
            grid = tuple(self._given.grid(everything))
        return [*prepared, Launch(self._parts.fn, grid, positional, kwargs)]

    def _preparations(
        self, workload: Workload, given: Mapping[str, Any], tensors: Tensors
    ) -> list[Launch]:
        """Launches that set what the kernel adds to or updates in place."""
        starts: dict[str, str | float | None] = {}
        for argument in self._list_passed(self._parts.reset_to_zero, given):
            starts[_tensor_name(self.name, argument, given, tensors)] = 0.0
        starts.update(self._given.initial)
        written = self.outputs(workload)
        for argument in self._list_passed(self._parts.restore_value, given):
            name = _tensor_name(self.name, argument, given, tensors)
            if name in written and name not in starts:
                raise KernelError(
                    f"kernel {self.name}: it updates {argument} in place (restore_value)",
                    f'say initial={{"{name}": "input"}}, the input whose values it starts with, or '
                    f'initial={{"{name}": None}} if the kernel only writes it',
                )
        for name in starts:
            if name not in tensors:
                raise KernelError(
                    f"kernel {self.name}: initial names {name}, which is no output or scratch",
                    f"there are {', '.join(tensors)}",
                )
        return [
            fill_launch(tensors[name], tensors[start] if isinstance(start, str) else start)
            for name, start in starts.items()
            if start is not None
        ]

    def _list_passed(self, arguments: Sequence[str], given: Mapping[str, Any]) -> list[str]:
        """Of arguments, those that are passed at all; an optional one may be None."""
        return [argument for argument in arguments if given.get(argument) is not None]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """The reference in the workload's own dtypes, eager and compiled, and the user's own."""
        given, own = self._given, self.outputs(workload)

        def plain(**inputs: torch.Tensor) -> Any:
            return given.reference(workload, inputs)

        def baseline(fn: Callable[..., Any]) -> Callable[[Tensors], Tensors]:
            def run(inputs: Tensors) -> Tensors:
                found = self._name_outputs(workload, fn(**inputs))
                return {
                    name: tensor.to(torch_dtype(own[name].dtype)) for name, tensor in found.items()
                }

            return run

        usual = {"eager": baseline(plain), "compile": baseline(compiled(plain))}
        return {**usual, **given.baselines}


class _Pruning:
    """Whether the kernel's own `prune_configs_by` keeps a config on these arguments.

    `early_config_prune` sees the kernel's configs or, for a config that is none of them, that one
    alone. `perf_model` with `top_k` ranks what is left of the kernel's own. Its digest in a space
    is the same in every process.
    """

    def __init__(self, parts: AutotuneParts, arguments: Mapping[str, Any], grid: Any) -> None:
        self._parts, self._arguments, self._grid = parts, arguments, grid
        self._own = {config_key(config) for config in parts.configs}
        self._kept: dict[Device, frozenset[str]] = {}
        self._early: dict[Device, frozenset[str]] = {}

    def __call__(self, config: Config, workload: Workload, device: Device) -> bool:
        with answering_if_used(device):
            return self._keeps(config, device)

    def _keeps(self, config: Config, device: Device) -> bool:
        if device not in self._kept:
            early = self._parts.apply_pruner(self._arguments, self._grid)
            self._early[device] = frozenset(map(config_key, early.configs))
            best = early.best(self._arguments, self._grid)
            self._kept[device] = frozenset(map(config_key, best))
        key = config_key(given_values(config))
        if key in self._own or key in self._early[device]:
            return key in self._kept[device]
        return self._parts.keeps(config, self._arguments, self._grid)


def _membership(listed: list[str]) -> Constraint:
    known = listed  # a plain list, so that it enters the constraint's digest

    def is_listed(config: Config, workload: Workload, device: Device) -> bool:
        return config_key(given_values(config)) in known

    return Constraint("listed", is_listed, "it is none of the kernel's own configs")


def _tensor_name(kernel: str, argument: str, given: Mapping[str, Any], tensors: Tensors) -> str:
    """The name under which the harness knows the tensor passed as a kernel's argument."""
    passed = given[argument]
    for name, tensor in tensors.items():
        if tensor is passed or tensor is getattr(passed, "_base", None):
            return name
    raise KernelError(
        f"kernel {kernel}: reset_to_zero or restore_value names {argument}, "
        "which is passed no tensor of inputs, outputs or scratch",
        "pass one of those, or a view of one",
    )
