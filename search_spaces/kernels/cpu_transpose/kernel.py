"""The transpose of a matrix on a CPU.

Memory-bound: the least traffic is one read and one write. What counts is the order in which tiles
are visited, because one side of the copy touches a page per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.kernel import EXACT, Tolerance
from search_spaces.kernels.cpu_forms import ATEN, FLOATS_AND_INT8, CpuRows, form_space
from search_spaces.kernels.limits import integer
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, TensorSpec, Workload
from search_spaces.space import SearchSpace

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form, Tensors

#: Most strips, each of which is a loop of the variant, and the fewest rows of a strip.
_MOST_STRIPS, _LEAST_ROWS = 16, 16


def library(x: torch.Tensor) -> torch.Tensor:
    """torch's transposed copy."""
    return x.t().contiguous()


class CpuTranspose(CpuRows):
    """out[cols, rows] of x[rows, cols] on a CPU; dims rows, cols and dtype.

    The form is `library` (Inductor's loops over tiles), `strips` (strips of rows one after the
    other, so that few pages are read at a time) or `aten` (torch's own kernel).
    """

    name = "cpu_transpose"
    dims = Dims(rows=int, cols=int, dtype=FLOATS_AND_INT8)
    small = {"rows": 67, "cols": 41}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 1024, "bfloat16"),  # Llama-3 8B: the weight of keys
            (2048, 1024, "int8"),  # Qwen3 0.6B: a quantized weight
            (3072, 768, "float32"),  # BERT-base: a weight of the feed-forward layer
            (3136, 256, "float32"),  # ResNet-50: NHWC to NCHW of 56 x 56 pixels
            (1500, 384, "bfloat16"),  # Whisper tiny: the encoder's output
            (65536, 16, "float32"),
            (1001, 333, "float32"),
            (1001, 333, "int8"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"x": workload.spec("rows", "cols", limits=(-128, 128))}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("cols", "rows")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].t().double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return float(elements)

    def space(self, workload: Workload) -> SearchSpace:
        forms = ["library", ATEN]
        parameters: list[Parameter] = []
        fitting = workload.size("rows") // _LEAST_ROWS
        if fitting >= 2:
            most = min(_MOST_STRIPS, 1 << (fitting.bit_length() - 1))
            forms.append("strips")
            parameters.append(PowerOfTwo("strips", 2, most, when={"form": ("strips",)}))
        compiled = [form for form in forms if form != ATEN]
        parameters.append(Boolean("tile_always", when={"form": compiled}))
        return form_space(self.name, forms, parameters)

    def options(self, workload: Workload, config: Config) -> Mapping[str, Any]:
        return {"cpp.enable_tiling_heuristics": not config.get("tile_always", False)}

    def eager(self, workload: Workload) -> Form:
        return library

    def form(self, workload: Workload, config: Config) -> Form:
        return _in_strips(integer(config, "strips")) if config["form"] == "strips" else library


def _in_strips(strips: int) -> Form:
    def in_strips(x: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat([strip.t() for strip in x.tensor_split(strips)], 1)

    return in_strips
