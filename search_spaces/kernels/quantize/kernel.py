"""Dynamic quantization of a matrix, with the scales that it finds.

Memory-bound: the least traffic is one read of the matrix and one write of its codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.codes import FLOAT8, LARGEST_CODE
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.quantize.space import (
    SCALES,
    check_elements,
    convert_parameter,
    default_conversion,
    default_point,
    group_launches,
    magnitude_space,
    part_specs,
    scale_shape,
    tensor_launches,
)
from search_spaces.kernels.quantize.torch_groups import largest_magnitudes, spread
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.shape_tensor import as_bytes
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

_LEAST_AMAX = 1e-12
#: Magnitude, maximum, quotient with its correction, and rounding of one element.
_FLOPS = 7.0
#: A quotient near a tie between two codes may be rounded to either: in a group of bfloat16 up to
#: 1 % of the elements are ties of float8, such as three quarters of the largest magnitude. A step
#: of float8 is at most an eighth of the number and a tenth on average: sqrt(1 %) / 10. A step of
#: int8 is 1, a thirty-fifth of the root mean square of codes of normal values, and half the
#: largest magnitude is the only tie.
_TOLERANCES = {FLOAT8: Tolerance(1e-2, 1 / 8), "int8": Tolerance(5e-3, 1.0)}


class Quantize(Kernel):
    """Codes q and scales of x[rows, cols]; dims rows, cols, scales, to and dtype.

    scales: the elements that share one, `row`, `block128` (128 adjacent ones of a row) or `tensor`
    (all, found by a launch before). to: float8_e4m3fn or int8, the dtype of the codes. A scale is
    the largest magnitude divided by the largest code, 448 or 127, in float32; a code is the
    quotient of element and scale, to nearest.
    """

    name = "quantize"
    edges = ALL_EDGES
    dims = Dims(rows=int, cols=int, scales=SCALES, to=tuple(LARGEST_CODE), dtype=DTYPES)
    output = ("q", "scale")

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 4096, "row", FLOAT8, "bfloat16"),  # Llama-3 8B
            (4096, 14336, "row", FLOAT8, "bfloat16"),  # Llama-3 8B, gated
            (16, 28672, "row", FLOAT8, "float16"),  # Llama-3 70B, gated, decoding
            (8192, 8192, "tensor", FLOAT8, "bfloat16"),  # Llama-3 70B
            (8192, 7168, "block128", FLOAT8, "bfloat16"),  # DeepSeek-V3
            (4096, 18432, "block128", FLOAT8, "bfloat16"),  # DeepSeek-V3, gated
            (64, 7168, "block128", FLOAT8, "bfloat16"),  # DeepSeek-V3, decoding
            (4096, 5120, "row", "int8", "bfloat16"),  # Qwen3 32B
            (151936, 4096, "row", "int8", "bfloat16"),  # vocabulary of Qwen3 8B
            (14336, 4096, "tensor", "int8", "float32"),  # a weight of Llama-3 8B
            (4096, 2048, "block128", "int8", "float16"),  # an expert of DeepSeek-V3
            (999, 1003, "row", FLOAT8, "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_elements(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        # Several blocks of a long row; whole and cut groups of 128.
        cols = {"row": 2501, "block128": 333, "tensor": 509}[workload.text("scales")]
        return workload.with_dims(rows=13 if cols < 1000 else 5, cols=cols)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        spec = workload.spec("rows", "cols")
        return {"x": spec}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {
            "q": workload.spec("rows", "cols", dtype=workload.text("to")),
            "scale": workload.spec(*scale_shape(workload), dtype="float32"),
        }

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return part_specs(workload, config)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        q, scale = _quantized(inputs["x"].double(), workload)
        return {"q": q.double(), "scale": scale.double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        """One step for each code; a few codes in a hundred may be off by it."""
        return _TOLERANCES[workload.text("to")]

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return _FLOPS * elements

    def space(self, workload: Workload) -> SearchSpace:
        ways = convert_parameter(workload, "to")
        return magnitude_space(workload, self.name, ways, codes=True)

    def default_config(self, workload: Workload, device: Device) -> Config:
        codes = {"steps": 1, "reversed": False} if workload["scales"] == "tensor" else {}
        ways = default_conversion(workload, "to", device)
        return {**default_point(workload), **codes, **ways}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        q, largest = tensors["q"], LARGEST_CODE[workload.text("to")]
        codes = as_bytes(q) if config.get("convert") == "bits" else q
        if workload["scales"] == "tensor":
            return tensor_launches(workload, config, tensors, codes, largest)
        return group_launches(workload, config, tensors["x"], codes, tensors["scale"], largest)

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return _quantized(x, workload)

        return eager


def _quantized(x: torch.Tensor, workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales by plain torch; the quotients are rounded to float32 first."""
    import torch

    to, scales = workload.text("to"), workload.text("scales")
    wide = x if x.dtype == torch.float64 else x.float()
    amax = largest_magnitudes(wide, scales).clamp_min(_LEAST_AMAX)
    scale = (amax / LARGEST_CODE[to]).float()
    quotient = (wide / spread(scale, x.shape, scales)).float()
    if to == "int8":
        return quotient.round().to(torch.int8), scale
    return quotient.to(torch.float8_e4m3fn), scale
