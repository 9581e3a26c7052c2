"""The kernel of captured calls: what an `adopt(...)` declaration would have made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.adoption.adopt import AdoptedKernel
from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.adoption.facts import Adoption
from search_spaces.errors import KernelError, WorkloadError
from search_spaces.fill import fill_launch
from search_spaces.kernel import EXACT, ROUNDING, Cost, Launch, Tolerance
from search_spaces.records import Config, Device, TensorSpec, Value, Workload
from search_spaces.shape_tensor import torch_dtype
from search_spaces.size_range import Range
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator
from tuner.capturing.arguments import placed_in
from tuner.capturing.call_configs import CallConfigs, arguments_on_meta, launch_of, run
from tuner.capturing.call_records import Buffer, Call, Written
from tuner.capturing.grids import constexprs
from tuner.capturing.inputs import arguments_of, make_tensor, spec_of
from tuner.capturing.probe import zeroed_buffers
from tuner.capturing.sized_calls import SizedCalls, read_ranges
from tuner.capturing.widening import UNSET, Opened, single_config, space_of

if TYPE_CHECKING:
    from search_spaces.tensors import Tensors

#: float32 sums of n terms in another order differ by about this times the root of n.
_SUM_ERROR = 2.4e-7


@dataclass(frozen=True)
class Declared:
    """The calls of one kernel and how they are to be tuned; all of it goes into workers' files."""

    #: One call per workload.
    calls: tuple[Call, ...]
    #: How far the space is opened.
    opened: Opened = field(default_factory=Opened)
    #: Where the user's reference is; empty: the library's own config is the reference.
    reference: str = ""
    #: The user's relative tolerance; None: from dtypes and the reduction length.
    tolerance: float | None = None
    #: Kept contents by SHA-256.
    contents: Mapping[str, bytes] = field(default_factory=dict)
    #: The sizes at which the calls are tuned, of an argument or a dim `x[0]`; at most one.
    ranges: Mapping[str, Range] = field(default_factory=dict)


class CallKernel(AdoptedKernel):
    """A kernel whose workloads are captured calls."""

    written = True

    def __init__(
        self,
        parts: AutotuneParts,
        declared: Declared,
        reference: Callable[..., Any] | None,
        write: Callable[[Declared, Path | None], CallKernel],
    ) -> None:
        self._declared, self._reference, self._write = declared, reference, write
        self._placed = placed_in(
            each for call in declared.calls for each in call.arguments.values()
        )
        self._tuned = declared.opened.names(parts)
        self._sized: SizedCalls | None = None
        self._calls: dict[Workload, tuple[Call, CallConfigs]] = {}
        for name, sizes in declared.ranges.items():
            self._sized = SizedCalls(declared.calls, parts, name, sizes)
            self._calls = {self._workload_at(size, call): (call, configs)
                           for size, (call, configs) in self._sized.list_captured()}  # fmt: skip
        for call in declared.calls if self._sized is None else ():
            self._calls[workload_of_call(call, self._tuned)] = call, CallConfigs(call, parts)
        given = Adoption(
            name=declared.calls[0].kernel,
            workloads=tuple(self._calls),
            inputs=None,
            outputs=self.outputs,
            arguments=self._arguments,
            grid=_unknown,
            reference=_unknown,
            cost=self.cost,
            dims=(),
            dtypes=(),
            small={},
            initial={},
            make_inputs=self.make_inputs,
            widen=declared.opened.wide,
        )
        super().__init__(parts, given)

    @property
    def place(self) -> str:
        return self._declared.calls[0].place

    def identity_state(self) -> CallKernel:
        """Without the name of its file, which differs with the numbers of the captured launch."""
        found = copy(self)
        found.spec = ""
        return found

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The sizes at which the calls are tuned, by an argument or a dim of a tensor."""
        return self._declared.ranges

    def with_ranges(self, ranges: Mapping[str, Range]) -> CallKernel:
        """A kernel that makes these calls at any size of the ranges.

        Its declaration is written into the folder that has the one of this kernel."""
        chosen = read_ranges(f"captured kernel {self.name}", ranges)
        file = self.spec.rpartition(":")[0]
        folder = Path(file).parent if file.endswith(".py") else None
        return self._write(replace(self._declared, ranges=chosen), folder)

    @property
    def free(self) -> tuple[str, ...]:
        """The arguments that no workload has, since their values do not change the work."""
        return tuple(
            dict.fromkeys(name for call in self._declared.calls for name in call.free or ())
        )

    @property
    def compiled_in(self) -> frozenset[str]:
        """The parameters that a launch compiles in."""
        return constexprs(self._parts)

    def call(self, workload: Workload) -> Call:
        """The call of a workload; raises `WorkloadError` for another one."""
        return self._find(workload)[0]

    def _find(self, workload: Workload) -> tuple[Call, CallConfigs]:
        found = self._calls.get(workload)
        if found is None and self._sized is not None:
            size = workload.get(self._sized.name)
            sized = self._sized.at(size)
            found = sized if self._workload_at(size, sized[0]) == workload else None
        if found is None:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: no such call was captured",
                "capture a launch with these arguments",
            )
        return found

    def _workload_at(self, size: Value, call: Call) -> Workload:
        """The workload of a call of a range; a size that is a dim of a tensor comes first."""
        assert self._sized is not None
        found, name = workload_of_call(call, self._tuned), self._sized.name
        return found if name in found else Workload.of(**{name: size, **found.as_dict()})

    def check_ends(self, find_device: Callable[[], str]) -> None:
        """Raise `KernelError` where the calls do something else at the ends of a range."""
        if self._sized is not None:
            self._sized.check_ends(self._declared.contents, find_device())

    # -- the problem ---------------------------------------------------------------------------
    def check_workload(self, workload: Workload) -> None:
        self.call(workload)

    def small_workload(self, workload: Workload) -> Workload:
        return workload

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        """The buffers that are read; of one that is written as well, its old values."""
        call, source = self.call(workload), generator(seed, device)
        names = _names(call)
        starts = self._starts(call, call.zeroed)
        found = {}
        for at, name in enumerate(names):
            tensor = make_tensor(call, at, self._declared.contents, source, device)
            if at not in starts:
                found[name] = tensor
            elif starts[at] == "input":
                found[_initial(name, names)] = tensor
        return found

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        call = self.call(workload)
        names = _names(call)
        return {names[each.buffer]: spec_of(call, each.buffer) for each in _require_written(call)}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        if self._reference is not None:
            wide = {
                name: tensor.double() if tensor.is_floating_point() else tensor
                for name, tensor in inputs.items()
            }
            return self._name_outputs(workload, self._reference(**wide))
        import torch

        (call, configs), specs = self._find(workload), self.outputs(workload)
        names, starts = _names(call), self._starts(call, call.zeroed)
        assert call.default is not None
        device = next(iter(inputs.values())).device if inputs else _device_here()
        tensors = {name: tensor.clone() for name, tensor in inputs.items()}
        for at, start in starts.items():
            spec = specs[names[at]]
            if start == "input":
                tensors[names[at]] = tensors[_initial(names[at], names)]
            else:
                shape, dtype = spec.shape, torch_dtype(spec.dtype)
                tensors[names[at]] = torch.full(shape, start or 0, dtype=dtype, device=device)  # type: ignore[arg-type]
        given = [tensors[name] for name in names]
        arguments = arguments_of(call, given, self._placed)
        run(launch_of(call, configs, call.default, arguments))
        return {name: tensors[name] for name in specs}

    def tolerance(self, workload: Workload) -> Tolerance:
        """From the dtypes of the outputs, the length of reductions, and the scale of the results.

        A library's own config that adds in an order of its own each time doubles what it differs.
        """
        call = self.call(workload)
        relatives = []
        for each in _require_written(call):
            dtype = spec_of(call, each.buffer).dtype
            usual = ROUNDING.get(dtype, 0.0)
            if usual:
                sums = _SUM_ERROR * sqrt(_reduction_length(call, each))
                relatives.append(max(usual, sums if dtype != "float64" else 0.0, 4 * each.noise))
        relative = self._declared.tolerance or max(relatives, default=0.0)
        if not relative:
            return EXACT
        scale = max(1.0, *(each.scale for each in _require_written(call)))
        return Tolerance(relative, 8 * relative * scale)

    def cost(self, workload: Workload) -> Cost:
        """What is surely written; what is read and computed is not known."""
        call = self.call(workload)
        whole = [each for each in _require_written(call) if not each.partial]
        return Cost(0.0, float(sum(call.buffers[each.buffer].bytes for each in whole)))

    # -- the variants --------------------------------------------------------------------------
    def space(self, workload: Workload) -> SearchSpace:
        call, configs = self._find(workload)
        if self._declared.opened.wide:
            try:
                parts = configs.parts
            except KernelError:  # Such as one that asks for the device: the constraint asks again.
                parts = self._parts
            return space_of(call, parts, self._declared.opened, configs.constraints)
        if not call.configs:
            return single_config(call)
        listed = super().space(workload)
        constraints = [*listed.constraints, *configs.constraints]
        return SearchSpace(listed.parameters, constraints, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The config that the library launched."""
        call = self.call(workload)
        bound = self.space(workload).bind(workload, device)
        assert call.default is not None
        passed = {name: call.arguments.get(name) for name in self._tuned}
        own = {**UNSET, **passed, **call.default}
        config: dict[str, Value] = {p.name: own.get(p.name) for p in bound.parameters}
        if bound.feasible(config):
            return config
        return super().default_config(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        call, configs = self._find(workload)
        names = _names(call)
        given = {name: value for name, value in config.items() if value is not None}
        fills = []
        for at, start in self._starts(call, configs.list_zeroed(given)).items():
            if start is not None:
                value = tensors[_initial(names[at], names)] if start == "input" else start
                fills.append(fill_launch(tensors[names[at]], value))  # type: ignore[arg-type]
        arguments = arguments_of(call, [tensors[name] for name in names], self._placed)
        return [*fills, launch_of(call, configs, given, arguments)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """The user's reference in the call's own dtypes."""
        if self._reference is None:
            return {}
        own, reference = self.outputs(workload), self._reference

        def eager(inputs: Tensors) -> Tensors:
            found = self._name_outputs(workload, reference(**inputs))
            return {name: each.to(torch_dtype(own[name].dtype)) for name, each in found.items()}

        return {"eager": eager}

    def _starts(self, call: Call, hooked: Sequence[str]) -> dict[int, str | float | None]:
        """By written buffer, what it holds before a launch: an input's values, a number, or
        nothing that matters. hooked: arguments that the hook of the config sets to zero."""
        zeroed = zeroed_buffers(call, self._parts, hooked)
        return {each.buffer: _start(call.buffers[each.buffer], each, zeroed)
                for each in _require_written(call)}  # fmt: skip

    def _arguments(self, workload: Workload, tensors: Tensors) -> Mapping[str, Any]:
        call = self.call(workload)
        return arguments_of(call, [tensors[name] for name in _names(call)], self._placed)

    def _parts_for(self, workload: Workload) -> AutotuneParts:
        return replace(self._parts, keywords=self.call(workload).keywords)

    def _arguments_on_meta(self, workload: Workload) -> dict[str, Any]:
        return arguments_on_meta(self.call(workload))


def workload_of_call(call: Call, tuned: Sequence[str]) -> Workload:
    from tuner.capturing.workloads import workload_of

    return workload_of(call, tuned)


def _start(buffer: Buffer, written: Written, zeroed: Sequence[int]) -> str | float | None:
    if written.buffer in zeroed:
        return 0.0
    constant = buffer.values is not None and buffer.values.low == buffer.values.high
    if written.updated:
        return buffer.values.low if constant and buffer.values and not buffer.contents else "input"
    # A form that forgets what it must leave alone would pass on a constant start.
    return "input" if written.partial else None


def _require_written(call: Call) -> tuple[Written, ...]:
    if call.written is None:
        raise KernelError(f"captured kernel {call.kernel}: {call.problem}", "capture it again")
    return call.written


def _device_here() -> Any:
    import torch
    import triton

    return torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")


def _names(call: Call) -> list[str]:
    """Names of the buffers; each is that of an argument."""
    found: list[str] = []
    for buffer in call.buffers:
        name = buffer.name
        while name in found:
            name += "_"
        found.append(name)
    return found


def _initial(name: str, names: Sequence[str]) -> str:
    """The name of an input with the old values of a buffer."""
    found = f"{name}_initial"
    while found in names:
        found += "_"
    return found


def _reduction_length(call: Call, written: Written) -> float:
    """About how many terms an element is the sum of, from the numbers of elements alone."""
    sizes = sorted(prod(spec_of(call, at).shape) for at in range(len(call.buffers)))
    own = max(1, prod(spec_of(call, written.buffer).shape))
    largest = sizes[-1]
    second = sizes[-2] if len(sizes) > 1 else 1
    return max(1.0, largest / own, sqrt(largest * second / own))


def _unknown(*_: Any) -> Any:
    raise TypeError("a captured call has its own grid and reference")
