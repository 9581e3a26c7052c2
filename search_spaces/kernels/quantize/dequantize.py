"""The numbers that codes and scales stand for.

Memory-bound: the least traffic is one read of the codes and one write of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.codes import FLOAT8, LARGEST_CODE, random_codes, random_scales
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.kernels.quantize.space import (
    CONVERSIONS,
    GROUP,
    SCALES,
    check_elements,
    convert_parameter,
    default_conversion,
    scale_shape,
)
from search_spaces.kernels.quantize.torch_groups import spread
from search_spaces.kernels.quantize.triton_kernels import dequantize_kernel
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.shape_tensor import as_bytes
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator

if TYPE_CHECKING:
    import torch

#: Elements of the smallest and the largest piece of a row with one scale.
_SHORTEST, _LONGEST = 256, 8192
_MOST_PIECES = 64
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 4


class Dequantize(Kernel):
    """out = q * scale of codes q[rows, cols]; dims rows, cols, scales, codes and dtype.

    scales: the elements that share one, `row`, `block128` (128 adjacent ones of a row) or `tensor`.
    codes: float8_e4m3fn or int8, the dtype of q; dtype: of the output.
    """

    name = "dequantize"
    edges = ALL_EDGES
    dims = Dims(rows=int, cols=int, scales=SCALES, codes=tuple(LARGEST_CODE), dtype=DTYPES)
    small = {"rows": 7, "cols": 333}
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (14336, 4096, "row", FLOAT8, "bfloat16"),  # a weight of Llama-3 8B
            (8192, 8192, "tensor", FLOAT8, "bfloat16"),  # Llama-3 70B
            (7168, 18432, "block128", FLOAT8, "bfloat16"),  # DeepSeek-V3
            (64, 7168, "block128", FLOAT8, "float32"),  # DeepSeek-V3, decoding
            (4096, 5120, "row", "int8", "bfloat16"),  # Qwen3 32B
            (16, 28672, "row", "int8", "float16"),  # Llama-3 70B, gated, decoding
            (999, 1003, "tensor", "int8", "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_elements(self.name, workload)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        codes, source = workload.text("codes"), generator(seed, device)
        shape = (workload.size("rows"), workload.size("cols"))
        q = random_codes(shape, codes, source, device)
        return {"q": q, "scale": random_scales(scale_shape(workload), codes, source, device)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        q, scale = inputs["q"].double(), inputs["scale"].double()
        return {"out": q * spread(scale, q.shape, workload.text("scales"))}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return float(elements)

    def space(self, workload: Workload) -> SearchSpace:
        parameters: list[Parameter] = [
            PowerOfTwo("PIECES", 1, min(_MOST_PIECES, next_power_of_two(_fewest_pieces(workload)))),
            PowerOfTwo("num_warps", 1, 16),
        ]
        if workload["scales"] != "block128":
            longest = max(_SHORTEST, min(_LONGEST, next_power_of_two(workload.size("cols"))))
            parameters.append(PowerOfTwo("LENGTH", _SHORTEST, longest))
        parameters += convert_parameter(workload, "codes")
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("PIECES", "LENGTH"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """2,048 elements by four warps; fewer where there are fewer."""
        usual: dict[str, str | int] = {"num_warps": 4, "PIECES": 1, "LENGTH": 2048}
        if workload["scales"] == "block128":
            del usual["LENGTH"]
            usual["PIECES"] = min(16, next_power_of_two(_fewest_pieces(workload)))
            usual["num_warps"] = max(1, int(usual["PIECES"]) // 4)
        elif workload.size("cols") <= 1024:
            usual |= {"LENGTH": max(_SHORTEST, next_power_of_two(workload.size("cols")))}
            usual["num_warps"] = max(1, int(usual["LENGTH"]) // 512)
        return {**usual, **default_conversion(workload, "codes", device)}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        q, cols, scales = tensors["q"], workload.size("cols"), workload.text("scales")
        codes = as_bytes(q) if config.get("convert") == "bits" else q
        length, each = integer(config, "LENGTH", GROUP), integer(config, "PIECES")
        pieces = workload.size("rows") * ceil_div(cols, length)
        constants = {
            "COLS": cols,
            "LENGTH": length,
            "PIECES": each,
            "EVEN": cols % length == 0 and pieces % each == 0,
            "SCALES": scales,
            "num_warps": config["num_warps"],
        }
        arguments = (codes, tensors["scale"], tensors["out"], pieces)
        return [Launch(dequantize_kernel, (ceil_div(pieces, each),), arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            import torch

            values = q.float() * spread(scale, q.shape, workload.text("scales"))
            dtype: torch.dtype = getattr(torch, workload.text("dtype"))
            return values.to(dtype)

        return eager


def _fewest_pieces(workload: Workload) -> int:
    """Pieces of all rows, if they are as long as they may be."""
    length = GROUP if workload["scales"] == "block128" else _LONGEST
    return workload.size("rows") * ceil_div(workload.size("cols"), length)


def _held(config: Config, workload: Workload) -> int:
    return integer(config, "PIECES") * integer(config, "LENGTH", GROUP)


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_held, _MOST_HELD),
    keeps_threads_busy(_held, _LEAST_HELD),
    *CONVERSIONS,
)
