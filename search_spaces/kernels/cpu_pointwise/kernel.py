"""Bias + GELU + row softmax on the CPU, by Inductor's C++ backend with its options as parameters.

By default, Inductor recomputes the GELU in the second pass of the softmax. Whether storing it is
faster depends on the width of the vectors, the number of threads and the form of GELU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.constraints import Constraint
from search_spaces.dims import Dims, tolerance_of
from search_spaces.kernel import Kernel, Tolerance
from search_spaces.kernels.cpu_forms import HAS_NARROWER, HAS_THREADS
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.params import Boolean, Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, named

if TYPE_CHECKING:
    import torch

_MAX_THREADS = 256
#: Operations of one element's GELU, exponential, sum and division, roughly.
_FLOPS = 20.0
#: Above this many operations Inductor stores an intermediate; its default is 30.
_STORE_EVERYTHING = 1


def exact(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """softmax(gelu(x + bias)) with the error function, in the dtype of x."""
    import torch

    return torch.softmax(torch.nn.functional.gelu(x + bias), dim=-1)


def exact_bfloat16(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with the GELU's result rounded to bfloat16."""
    import torch

    hidden = torch.nn.functional.gelu(x + bias).to(torch.bfloat16)
    return torch.softmax(hidden.to(x.dtype), dim=-1)


def approximate(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """softmax(gelu(x + bias)) with the tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    import torch

    return torch.softmax(torch.nn.functional.gelu(x + bias, approximate="tanh"), dim=-1)


def approximate_bfloat16(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with the GELU's result rounded to bfloat16."""
    import torch

    hidden = torch.nn.functional.gelu(x + bias, approximate="tanh").to(torch.bfloat16)
    return torch.softmax(hidden.to(x.dtype), dim=-1)


_FORMS = {
    ("erf", "float32"): exact,
    ("erf", "bfloat16"): exact_bfloat16,
    ("tanh", "float32"): approximate,
    ("tanh", "bfloat16"): approximate_bfloat16,
}


#: The least tolerances that these choices may keep. In rows of a thousand elements the tanh form is
#: off by nearly twice as much, a bfloat16 intermediate by half as much again.
_LEAST_OF_TANH = 1e-4


def _tolerance(workload: Workload) -> float:
    """The relative tolerance of a workload; that of float32 where it names none."""
    return tolerance_of(workload, ROUNDING["float32"])


def _keeps_bfloat16(config: Config, workload: Workload, device: Device) -> bool:
    rounded = config["precision"] == "bfloat16"
    return not rounded or _tolerance(workload) >= ROUNDING["bfloat16"]


def _keeps_tanh(config: Config, workload: Workload, device: Device) -> bool:
    return config["gelu"] != "tanh" or _tolerance(workload) >= _LEAST_OF_TANH


CONSTRAINTS = (
    HAS_THREADS,
    HAS_NARROWER,
    Constraint("rounding", _keeps_bfloat16, "a bfloat16 intermediate is outside the tolerance"),
    Constraint("tanh", _keeps_tanh, "the tanh form of GELU is outside the tolerance"),
)


class CpuPointwise(Kernel):
    """softmax(gelu(x[rows, cols] + bias[cols]), -1); dims rows, cols, dtype, optionally tolerance.

    The tolerance (relative error, 1e-5 without one) decides whether the tanh form of GELU (about
    2e-4 off) and a bfloat16 intermediate (about 7e-3 off) are in the space.
    """

    name = "cpu_pointwise"
    dims = Dims(rows=int, cols=int, dtype=("float32",), tolerance=float)
    kinds = ("cpu",)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 1024, "float32", 1e-2),
            (256, 1024, "float32"),
            (1024, 1024, "float32", 1e-3),
            (333, 1001, "float32"),
            (64, 4096, "float32"),
            (512, 4096, "float32", 1e-2),
            (1024, 4096, "float32"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        rows, cols = workload.sizes("rows", "cols")
        return {
            "x": workload.spec(rows, cols),
            "bias": workload.spec(cols),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = _tolerance(workload)
        return Tolerance(relative, relative)

    def flops(self, workload: Workload) -> float:
        rows, cols = workload.sizes("rows", "cols")
        return _FLOPS * rows * cols

    def space(self, workload: Workload) -> SearchSpace:
        parameters: list[Parameter] = [
            Choice("simdlen", (None, 256)),
            PowerOfTwo(
                "threads", 1, min(_MAX_THREADS, 1 << (workload.size("rows") - 1).bit_length())
            ),
            Boolean("store_gelu"),
            Choice("precision", ("float32", "bfloat16")),
            Choice("gelu", ("erf", "tanh")),
            Boolean("decompose_tanh", when={"gelu": ("tanh",)}),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """The behaviour of plain `torch.compile`: widest vectors, every core, GELU as written."""
        bound = self.space(workload).bind(workload, device)
        threads = [config["threads"] for config in bound.restrict({"simdlen": [None]}).enumerate()]
        return bound.complete({"threads": threads[-1]})

    def cpu_callable(
        self, workload: Workload, config: Config
    ) -> Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]:
        options: dict[str, str | int | None] = {
            "cpp.simdlen": 256 if config["simdlen"] == 256 else None,
            "cpp.threads": self.cpu_threads(workload, config),
            # Without it, Inductor drops the rounding to bfloat16 where it fuses operations.
            "emulate_precision_casts": config["precision"] == "bfloat16",
            "cpp.use_decompose_tanh": bool(config.get("decompose_tanh", False)),
        }
        if config["store_gelu"]:
            options["realize_opcount_threshold"] = _STORE_EVERYTHING
        form = _FORMS[str(config["gelu"]), str(config["precision"])]
        return named("out", compiled(form, options), "x", "bias")

    def cpu_threads(self, workload: Workload, config: Config) -> int:
        return integer(config, "threads")

    def eager(self, workload: Workload) -> Callable[..., Any]:
        return exact
