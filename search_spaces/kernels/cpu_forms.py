"""What the families of CPU kernels share: forms, Inductor's options as parameters, threads.

A variant computes one form of an operation, which is a function of the inputs. Inductor's C++
backend compiles it under options that are parameters; forms whose name begins with `aten` are not
compiled and run torch's own kernels. Imports no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from search_spaces.constraints import Constraint
from search_spaces.dims import Dims
from search_spaces.kernel import Kernel
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.params import Choice, Parameter
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, named

if TYPE_CHECKING:
    import torch

    Tensors: TypeAlias = Mapping[str, torch.Tensor]
    Form: TypeAlias = Callable[..., torch.Tensor]

#: Dtypes of most CPU families, and those of families that also take integers.
FLOATS = ("float32", "bfloat16")
FLOATS_AND_INT8 = (*FLOATS, "int8")
ATEN = "aten"
#: Usual numbers of cores, and what divides them.
_THREADS = (
    *(1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64),
    *(72, 80, 96, 112, 128, 192, 256),
)  # fmt: skip


class CpuKernel(Kernel):
    """An operation whose variants are forms: functions of the tensors that `eager` takes."""

    kinds = ("cpu",)

    @abstractmethod
    def form(self, workload: Workload, config: Config) -> Form:
        """The form that a config names."""

    def options(self, workload: Workload, config: Config) -> Mapping[str, Any]:
        """Options of Inductor in addition to the shared ones."""
        return {}

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The first value of every parameter, on every core: what `torch.compile` does."""
        return self.space(workload).bind(workload, device).complete({"threads": cores(device)})

    def cpu_callable(
        self, workload: Workload, config: Config
    ) -> Callable[[Tensors], Mapping[str, torch.Tensor]]:
        form = self.form(workload, config)
        if not is_aten(config):
            options = {**inductor_options(config), **self.options(workload, config)}
            form = compiled(form, options)
        return named(self.output, form, *self.arguments)

    def cpu_threads(self, workload: Workload, config: Config) -> int:
        return integer(config, "threads")


class CpuRows(CpuKernel):
    """An operation on x[rows, cols] whose output has the same shape and dtype."""

    dims = Dims(rows=int, cols=int, dtype=FLOATS)
    small = {"rows": 7, "cols": 509}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}


# -- dtypes ----------------------------------------------------------------------------------------
def element_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return 1 if dtype == "int8" else ELEMENT_BYTES[dtype]


def rounding(workload: Workload) -> float:
    """The relative error of rounding to the workload's dtype after sums in float32."""
    return ROUNDING[workload.text("dtype")]


# -- the space -------------------------------------------------------------------------------------
def form_space(
    kernel: str,
    forms: Sequence[str],
    parameters: Sequence[Parameter] = (),
    constraints: Sequence[Constraint] = (),
) -> SearchSpace:
    """The form, its threads, the width of Inductor's vectors, and a family's own parameters."""
    shared = [
        Choice("form", forms),
        Choice("threads", _THREADS),
        Choice("simdlen", (None, 256)),
    ]
    return SearchSpace(
        [*shared, *parameters], [HAS_THREADS, HAS_NARROWER, VECTORISED, *constraints], kernel=kernel
    )


def cores(device: Device) -> int:
    """The largest number of threads of the space that the device has cores for."""
    return max(count for count in _THREADS if count <= max(device.sm_count, 1))


def is_aten(config: Config) -> bool:
    """Whether a config runs torch's own kernels, without Inductor."""
    return str(config["form"]).startswith(ATEN)


def _has_threads(config: Config, workload: Workload, device: Device) -> bool:
    return integer(config, "threads") <= max(device.sm_count, 1)


def _narrower_than_widest(config: Config, workload: Workload, device: Device) -> bool:
    return config["simdlen"] is None or "avx512" in device.target


def _has_vectors(config: Config, workload: Workload, device: Device) -> bool:
    return config["simdlen"] is None or not is_aten(config)


HAS_THREADS = Constraint("threads", _has_threads, "the processor has fewer cores")
HAS_NARROWER = Constraint("simdlen", _narrower_than_widest, "only AVX-512 has wider vectors")
VECTORISED = Constraint("compiled", _has_vectors, "simdlen changes compiled forms only")


# -- the variant -----------------------------------------------------------------------------------
def inductor_options(config: Config) -> dict[str, Any]:
    """Inductor's options that every family shares."""
    return {
        "cpp.simdlen": 256 if config["simdlen"] == 256 else None,
        "cpp.threads": integer(config, "threads"),
    }


# -- sums and maxima of rows -----------------------------------------------------------------------
def folded_sum(x: torch.Tensor, fold: int) -> torch.Tensor:
    """The sum of each row, [rows, 1]; `fold` parts of a row are added in one step of the loop.

    Inductor keeps one vector of partial sums, so each addition waits for the previous one. A step
    of several parts adds them in a tree first, and waits once.
    """
    fold = fold if fold <= x.shape[-1] else 1
    parts = _parts(x, fold)
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    # torch would widen int32 to int64.
    total = parts[0].sum(-1, keepdim=True, dtype=x.dtype)
    rest = x.shape[-1] % fold
    if not rest:
        return total
    return total + x[:, x.shape[-1] - rest :].sum(-1, keepdim=True, dtype=x.dtype)


def folded_max(x: torch.Tensor, fold: int) -> torch.Tensor:
    """The largest value of each row, [rows, 1]; `fold` as for `folded_sum`."""
    import torch

    fold = fold if fold <= x.shape[-1] else 1
    parts = _parts(x, fold)
    while len(parts) > 1:
        parts = [
            torch.maximum(one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)
        ]
    most = parts[0].amax(-1, keepdim=True)
    rest = x.shape[-1] % fold
    if not rest:
        return most
    return torch.maximum(most, x[:, x.shape[-1] - rest :].amax(-1, keepdim=True))


def _parts(x: torch.Tensor, fold: int) -> list[torch.Tensor]:
    """`fold` adjacent parts of each row, equally long; what is left over is in none of them."""
    length = x.shape[-1] // fold
    return [x[:, part * length : (part + 1) * length] for part in range(fold)]
