"""The `Kernel` role: one tunable operation with its inputs, reference, cost model and baselines.

Torch is imported by the kernel families where they use it, never by this module.

A kernel's identity is a digest of the text of all own code that it can reach
(`search_spaces.identity`). A search space has a separate digest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.dims import Dims, tolerance_of
from search_spaces.identity import identity_of
from search_spaces.records import Config, Device, TensorSpec, Value, Workload, digest
from search_spaces.tensors import (
    Tensors,
    compiled,
    draw_tensor,
    empty_tensors,
    generator,
    named,
    widen,
)

if TYPE_CHECKING:
    import torch

    from search_spaces.size_range import Range
    from search_spaces.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest error of an output against the reference."""

    #: Bound of ||out - ref|| / ||ref||.
    relative: float
    #: Bound of |out - ref| / (1 + |ref|) of every element.
    elementwise: float


#: The tolerance of outputs that are copied or are places: any difference is an error.
EXACT = Tolerance(1e-12, 1e-12)
#: Relative errors of results that are rounded to a dtype after sums in float32; 0 for others.
ROUNDING = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 1e-3,
    "bfloat16": 4e-3,
    "float8_e4m3fn": 4e-2,
    "float8_e5m2": 8e-2,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of any correct variant."""

    #: Arithmetic operations.
    flops: float
    #: Bytes read from and written to device memory.
    bytes: float


@dataclass(frozen=True, slots=True)
class Launch:
    """One Triton launch of a variant: `fn[grid](*args, **kwargs)`.

    A builder passes the same arguments, with tensors on the `meta` device, to `fn.warmup`, so the
    binary that is built is the one that is launched.
    """

    #: The function under `@triton.jit`, with any decorators around it.
    fn: Any
    #: One to three sizes.
    grid: tuple[int, ...]
    #: Arguments by position.
    args: tuple[Any, ...]
    #: Constants and compiler options (num_warps, num_stages) by name.
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Kernel(ABC):
    """One tunable operation. Subclasses are stateless; every method is a pure function.

    A subclass declares `name`, `dims`, `inputs`, `eager` (or `reference`), `space` and `launches`
    (or `cpu_callable`); what follows from these is derived, and may be overridden.

    Life of a task: `check_workload` -> `space` -> (builder) `launches` on meta tensors or
    `cpu_callable` -> (runner) `make_inputs`, `run`, `reference`, `tolerance` -> `cost` in reports.
    """

    name: ClassVar[str]
    #: kinds of backend that can run it: ("cuda", "hip") for Triton, ("cpu",) for Inductor's C++.
    kinds: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    #: What dims a workload has. A kernel that declares none checks its workloads itself.
    dims: ClassVar[Dims] = Dims()
    #: Dims that make any workload odd-shaped, and small enough for Triton's interpreter.
    small: ClassVar[Mapping[str, Value]] = {}
    #: The inputs that `eager` takes, in order; empty: all of them.
    arguments: ClassVar[tuple[str, ...]] = ()
    #: The name of the output, or of several in the order in which `eager` returns them.
    output: ClassVar[str | tuple[str, ...]] = "out"
    #: Values at which it has to be right, by their names in `search_spaces.edges`: the gate puts
    #: them into rows of `edge_inputs`, or of the first input with the most dims.
    edges: ClassVar[tuple[str, ...]] = ()
    edge_inputs: ClassVar[tuple[str, ...]] = ()
    #: How much larger the error of one element may be than the relative error of an output: the
    #: default is for errors that are roughly normal.
    elementwise: ClassVar[float] = 8.0
    #: Dims whose workloads run one after the other with one config, as the products of a layer in a
    #: library's table: their ranges try each other's configs.
    joint_dims: ClassVar[tuple[str, ...]] = ()
    #: Whether the farm wrote the file that declares it, which says what the object holds anyway.
    written: ClassVar[bool] = False
    #: where to import it from in another process: a registered name, `module:object` or
    #: `path.py:object`. The registry fills it in.
    spec: str = ""

    # -- the problem ---------------------------------------------------------------------------
    def workloads(self) -> Sequence[Workload]:
        """The workloads tuned when a campaign names none."""
        return ()

    def with_ranges(self, ranges: Mapping[str, Range]) -> Kernel | None:
        """This kernel, with its own workloads at any size of a range; None where a workload has to
        name the other dims."""
        return None

    def check_workload(self, workload: Workload) -> None:
        """Raise `WorkloadError`, with the reason and the remedy, when it cannot be taken."""
        if self.dims:
            self.dims.check(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        """An odd-shaped workload of the same dtypes, small enough for Triton's interpreter."""
        return workload.with_dims(**self.small)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Shapes, dtypes and values of the inputs, unless `make_inputs` makes them."""
        raise NotImplementedError(f"{type(self).__name__} declares no inputs()")

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        """Random inputs from `seed`, never zeros, on `device` (`cuda`, `cpu`, `meta`)."""
        source = generator(seed, device)
        return {
            name: draw_tensor(spec, source, device) for name, spec in self.inputs(workload).items()
        }

    def derive_inputs(self, workload: Workload, inputs: Tensors) -> Tensors:
        """Inputs that follow from others, such as an order of rows; made again after these."""
        return {}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """What a variant writes; the harness allocates, poisons and guards these buffers.

        By default what `eager` or `reference` returns for inputs on `meta`; floating point has the
        dtype of the first such input.
        """
        return _derive_outputs(self, workload)

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        """Work space of a variant (split-K partial sums); contents are undefined on entry."""
        return {}

    def eager(self, workload: Workload) -> Callable[..., Any]:
        """What torch's users write: a function of the tensors that `arguments` names."""
        raise NotImplementedError(f"{type(self).__name__} declares neither eager() nor reference()")

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """The outputs in float64 (or float32 for very large problems), by plain torch."""
        return named(self.output, self.eager(workload), *self.arguments)(widen(inputs))

    def tolerance(self, workload: Workload) -> Tolerance:
        """The largest error of an admissible variant; by default that of rounding the outputs."""
        usual = max(ROUNDING.get(spec.dtype, 0.0) for spec in self.outputs(workload).values())
        relative = tolerance_of(workload, usual)
        return Tolerance(relative, self.elementwise * relative)

    def flops(self, workload: Workload) -> float:
        """The least arithmetic operations of the problem."""
        return 0.0

    def cost(self, workload: Workload) -> Cost:
        """The least work of the problem; by default `flops`, and inputs and outputs moved once."""
        inputs = self.make_inputs(workload, 0, "meta")
        outputs = empty_tensors(self.outputs(workload), "meta")
        tensors = [*inputs.values(), *outputs.values()]
        return Cost(
            self.flops(workload), float(sum(item.numel() * item.element_size() for item in tensors))
        )

    # -- the variants --------------------------------------------------------------------------
    @abstractmethod
    def space(self, workload: Workload) -> SearchSpace:
        """Parameters and constraints; `space.bind(workload, device)` makes it searchable."""

    def declares(self, config: Config) -> bool:
        """Whether `space` says for every workload if a config is right there; else only runs do."""
        return True

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The config that users run without tuning; a point of the space.

        By default the first value of every parameter.
        """
        return self.space(workload).bind(workload, device).complete({})

    def listed_configs(self, workload: Workload, device: Device) -> Sequence[Config]:
        """Configs that users choose from today, by measuring them, such as an autotuner's; the
        fastest correct one is the default where `default_config` fails."""
        return ()

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        """A Triton variant as its launches, in order, on named inputs, outputs and scratch."""
        raise NotImplementedError(f"{self.name} has no Triton variants")

    def cpu_callable(
        self, workload: Workload, config: Config
    ) -> Callable[[Tensors], Mapping[str, torch.Tensor]]:
        """A CPU variant: a function of the inputs, compiled on its first call by torch."""
        raise NotImplementedError(f"{self.name} has no CPU variants")

    def cpu_threads(self, workload: Workload, config: Config) -> int:
        """Threads a CPU variant runs on."""
        return 1

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        """What users would run besides `eager`, by name: functions of the same tensors."""
        return {}

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """What a user would run instead, by name (`eager`, `vendor`): inputs -> outputs.

        By default `eager`, where it is declared, the same under `torch.compile`, and alternatives.
        """
        found: dict[str, Callable[..., Any]] = {}
        if type(self).eager is not Kernel.eager:
            fn = self.eager(workload)
            found = {"eager": fn, "compile": compiled(fn)}
        found |= self.alternatives(workload)
        return {name: named(self.output, fn, *self.arguments) for name, fn in found.items()}

    # -- identity ------------------------------------------------------------------------------
    def launch_hash(self) -> str:
        """The identity: a digest of all code and state behind launches, reference and inputs."""
        return identity_of(self).digest

    def kernel_hashes(self) -> tuple[str, ...]:
        """Digests of the jitted functions that are launched, as `tuner.runtime` computes them."""
        return identity_of(self).kernels

    def space_hash(self, workload: Workload) -> str:
        """A digest of the declared space."""
        return digest(self.space(workload).describe())


@lru_cache(maxsize=256)
def _derive_outputs(kernel: Kernel, workload: Workload) -> Mapping[str, TensorSpec]:
    """The outputs as `reference` gives them for inputs on `meta`."""
    import torch  # what is on `meta` is torch's own then

    inputs = kernel.make_inputs(workload, 0, "meta")
    floats = [item.dtype for item in inputs.values() if item.is_floating_point()]
    found = {}
    for name, item in kernel.reference(workload, inputs).items():
        dtype = floats[0] if floats and item.is_floating_point() else item.dtype
        found[name] = TensorSpec(tuple(item.shape), str(dtype).removeprefix(f"{torch.__name__}."))
    return found
