"""The `Kernel` role: one tunable operation with its inputs, reference, cost model and baselines.

Torch is imported by the kernel families where they use it, never by this module.

A kernel's identity is two digests of the code that its methods reach. The launch hash covers the
code and constants behind the launches; the check hash those behind reference, inputs, tolerance and
baselines. Workloads, search space, default config and cost are in neither. A search space has a
separate digest.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from search_spaces.errors import KernelError
from search_spaces.records import Config, Device, Workload, digest
from tuner.runtime.identity import Closure, IdentityError, closure_of, stamp

if TYPE_CHECKING:
    import torch

    from search_spaces.space import SearchSpace

    Tensors: TypeAlias = Mapping[str, torch.Tensor]

LAUNCHED = ("launches", "cpu_callable", "cpu_threads", "outputs", "scratch")
CHECKED = ("reference", "make_inputs", "tolerance", "baselines", "small_workload")
#: Members of a kernel that do not count where it is passed as a whole (`f(self)`).
_IGNORED = frozenset(
    {"workloads", "check_workload", "space", "default_config", "cost", "spec"}
    | {"launch_hash", "check_hash", "kernel_hashes", "space_hash"}
)
#: Members of a workload that only format it.
_SHOWN = frozenset({"key"})

_known: dict[tuple[int, tuple[str, ...]], tuple[Callable[[], object], Closure]] = {}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest error of an output against the reference."""

    #: Bound of ||out - ref|| / ||ref||.
    relative: float
    #: Bound of |out - ref| / (1 + |ref|) of every element.
    elementwise: float


#: The tolerance of outputs that are copied or are places: any difference is an error.
EXACT = Tolerance(1e-12, 1e-12)


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of any correct variant."""

    #: Arithmetic operations.
    flops: float
    #: Bytes read from and written to device memory.
    bytes: float


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of an input, output or scratch buffer."""

    #: Sizes, outermost first.
    shape: tuple[int, ...]
    #: torch's name of the dtype, such as `float32`.
    dtype: str


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

    Life of a task: `check_workload` -> `space` -> (builder) `launches` on meta tensors or
    `compile_cpu` -> (runner) `make_inputs`, `run`, `reference`, `tolerance` -> `cost` in reports.
    """

    name: ClassVar[str]
    #: kinds of backend that can run it: ("cuda", "hip") for Triton, ("cpu",) for Inductor's C++.
    kinds: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    #: where to import it from in another process: a registered name, `module:object` or
    #: `path.py:object`. The registry fills it in.
    spec: str = ""

    # -- the problem ---------------------------------------------------------------------------
    @abstractmethod
    def workloads(self) -> Sequence[Workload]:
        """The workloads tuned when a campaign names none."""

    @abstractmethod
    def check_workload(self, workload: Workload) -> None:
        """Raise `WorkloadError`, with the reason and the remedy, when it cannot be taken."""

    def small_workload(self, workload: Workload) -> Workload:
        """An odd-shaped workload of the same dtypes, small enough for Triton's interpreter."""
        return workload

    @abstractmethod
    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        """Random inputs from `seed`, never zeros, on `device` (`cuda`, `cpu`, `meta`)."""

    @abstractmethod
    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """What a variant writes; the harness allocates, poisons and guards these buffers."""

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        """Work space of a variant (split-K partial sums); contents are undefined on entry."""
        return {}

    @abstractmethod
    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        """The outputs in float64 (or float32 for very large problems), by plain torch."""

    @abstractmethod
    def tolerance(self, workload: Workload) -> Tolerance:
        """The largest error of an admissible variant."""

    @abstractmethod
    def cost(self, workload: Workload) -> Cost:
        """The least flops and bytes of the problem."""

    # -- the variants --------------------------------------------------------------------------
    @abstractmethod
    def space(self, workload: Workload) -> SearchSpace:
        """Parameters and constraints; `space.bind(workload, device)` makes it searchable."""

    @abstractmethod
    def default_config(self, workload: Workload, device: Device) -> Config:
        """The config that users run without tuning; a point of the space."""

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

    @abstractmethod
    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        """What a user would run instead, by name (`eager`, `vendor`): inputs -> outputs."""

    # -- identity ------------------------------------------------------------------------------
    def launch_hash(self) -> str:
        """A digest of all code and constants behind the launches."""
        return closure(self, LAUNCHED).digest

    def check_hash(self) -> str:
        """A digest of all code behind reference, inputs, tolerance and baselines."""
        return closure(self, CHECKED).digest

    def kernel_hashes(self) -> tuple[str, ...]:
        """Digests of the jitted functions that are launched, as `tuner.runtime` computes them."""
        return closure(self, LAUNCHED).kernels

    def space_hash(self, workload: Workload) -> str:
        """A digest of the declared space."""
        return digest(self.space(workload).describe())


def closure(kernel: Kernel, methods: tuple[str, ...]) -> Closure:
    """The code that those methods of a kernel reach; computed once per process.

    After an edit of a file, this process runs the old code and its children run the new code. The
    digest then includes the file's stamp, so that no result is reused under it.
    """
    key = id(kernel), methods
    known = _known.get(key)
    if known is None or known[0]() is not kernel:
        ignored = {Kernel: _IGNORED, Workload: _SHOWN}
        try:
            found = closure_of(kernel, methods, given=(Workload,), ignored=ignored)
        except IdentityError as error:
            raise KernelError(f"kernel {kernel.name}: {error}", error.hint) from error
        known = _known[key] = weakref.ref(kernel), found
    found = known[1]
    stamps = {file: stamp(file) for file in found.files}
    if stamps == found.files:
        return found
    return replace(found, digest=digest([found.digest, sorted(stamps.items())]), kernels=())
