"""Activation functions, each one Triton launch.

Memory-bound: the least traffic is one read of the input and one write of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.activation.triton_kernels import activation_kernel, gated_kernel
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.elements import (
    counts_wide,
    default_point,
    element_constants,
    element_grid,
    element_space,
)
from search_spaces.kernels.limits import LARGEST_SIDE, MAX_SIZE, integer
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, scripted

if TYPE_CHECKING:
    import torch

    Function = Callable[[torch.Tensor], torch.Tensor]

#: Functions of one element, and those of a gate and a value, which stand in the halves of a row.
PLAIN = ("relu", "relu1", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
GATED = ("swiglu", "geglu")
#: Operations of one element, roughly.
_FLOPS = 10.0


def _relu1(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.hardtanh(x, 0.0, 1.0)


def _relu1_clamp(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0.0, 1.0)


def _relu1_clamp_(x: torch.Tensor) -> torch.Tensor:
    # Inputs are kept for later runs, so that the update in place is one of a copy.
    return x.clone().clamp_(0.0, 1.0)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    import torch

    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _geglu(x: torch.Tensor) -> torch.Tensor:
    import torch

    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate) * up


def _torch_function(name: str) -> Function:
    """What torch's users write for an activation."""
    import torch

    ours: dict[str, Function] = {
        "relu1": _relu1,
        "gelu_tanh": _gelu_tanh,
        "swiglu": _swiglu,
        "geglu": _geglu,
    }
    if name in ours:
        return ours[name]
    function: Function = getattr(torch.nn.functional, name)
    return function


class Activation(Kernel):
    """`function(x)` of x[rows, cols]; dims rows, cols, function and dtype.

    function: relu, relu1 (clamped to 0 and 1), sigmoid, tanh, gelu, gelu_tanh, silu; or swiglu and
    geglu, whose x is [rows, 2 cols] with the gate in front.

    A function of one element may be computed in place: out may be x itself, with the same binary.
    For relu1, the baselines are `eager` (hardtanh), `clamp` and `clamp_`, whose copy is timed too.
    """

    name = "activation"
    edges = ALL_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=MAX_SIZE // 2, function=(*PLAIN, *GATED), dtype=DTYPES)
    small = {"rows": 5, "cols": 333}
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 14336, "swiglu", "bfloat16"),  # Llama-3 8B, 8,192 tokens
            (16, 28672, "swiglu", "bfloat16"),  # Llama-3 70B, decoding 16 requests
            (4096, 12288, "swiglu", "bfloat16"),  # Qwen3 8B
            (48000, 5120, "gelu", "float16"),  # Whisper large-v3's encoder, 32 segments
            (4096, 21504, "geglu", "bfloat16"),  # Gemma 3 27B
            (401408, 64, "relu", "float16"),  # ResNet-50's first layer, 32 images
            (100352, 256, "relu1", "bfloat16"),
            (65536, 1024, "sigmoid", "float32"),  # a gate of DLRM's interactions
            (16384, 4096, "tanh", "bfloat16"),
            (8191, 4099, "silu", "float32"),
            (8192, 3072, "gelu_tanh", "bfloat16"),  # GPT-2 small
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        width = workload.size("cols") * (2 if _gated(workload) else 1)
        return {"x": workload.spec("rows", width, scale=2.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return _FLOPS * elements

    def space(self, workload: Workload) -> SearchSpace:
        return element_space(_blocked(workload), self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(_blocked(workload))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out, function = tensors["x"], tensors["out"], workload.text("function")
        blocked = _blocked(workload)
        constants: dict[str, Any] = {"FUNCTION": function, **element_constants(blocked, config)}
        if not _gated(workload):
            constants["WIDE"] = counts_wide(blocked, integer(config, "BLOCK"))
            grid = (element_grid(blocked, config),)
            return [Launch(activation_kernel, grid, (x, out, blocked), constants)]
        rows = workload.size("rows")
        parts = rows * ceil_div(blocked, integer(config, "BLOCK"))
        grid = (ceil_div(parts, integer(config, "steps")),)
        constants["COLS"] = blocked
        return [Launch(gated_kernel, grid, (x, out, rows), constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        name = workload.text("function")

        def eager(x: torch.Tensor) -> torch.Tensor:
            return _torch_function(name)(x)

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        found = {"torchscript": scripted(self.eager(workload))}
        if workload["function"] == "relu1":
            found |= {"clamp": _relu1_clamp, "clamp_": _relu1_clamp_}
            found["torchscript_clamp"] = scripted(_relu1_clamp)
        return found


def _gated(workload: Workload) -> bool:
    return workload.text("function") in GATED


def _blocked(workload: Workload) -> int:
    """The elements that blocks divide: of the whole tensor, or of a row where rows are gated."""
    cols = workload.size("cols")
    return cols if _gated(workload) else workload.size("rows") * cols
