"""The transpose of a matrix on a CPU.

Memory-bound: the least traffic is one read and one write. What counts is the order in which tiles
are visited, because one side of the copy touches a page per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import EXACT, Cost, TensorSpec, Tolerance
from search_spaces.kernels.cpu_forms import (
    ATEN,
    FLOATS_AND_INT8,
    CpuRows,
    element_bytes,
    form_space,
)
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.kernels.rows import workloads
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import generator, random_tensor

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
    dtypes = FLOATS_AND_INT8

    def workloads(self) -> Sequence[Workload]:
        return workloads(
            (4096, 1024, "bfloat16"),  # Llama-3 8B: the weight of keys
            (2048, 1024, "int8"),  # Qwen3 0.6B: a quantised weight
            (3072, 768, "float32"),  # BERT-base: a weight of the feed-forward layer
            (3136, 256, "float32"),  # ResNet-50: NHWC to NCHW of 56 x 56 pixels
            (1500, 384, "bfloat16"),  # Whisper tiny: the encoder's output
            (65536, 16, "float32"),
            (1001, 333, "float32"),
            (1001, 333, "int8"),
        )

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": MAX_SIZE, "cols": MAX_SIZE}
        check_dims(self.name, workload, sizes=sizes, dtypes=FLOATS_AND_INT8)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=67, cols=41)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = TensorSpec((workload.size("rows"), workload.size("cols")), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device, limits=(-128, 128))}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("cols"), workload.size("rows"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].t().double()}

    def tolerance(self, workload: Workload) -> Tolerance:
        return EXACT

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        moved = 2.0 * elements * element_bytes(workload.text("dtype"))
        return Cost(flops=float(elements), bytes=moved)

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
