"""Gradients of activation functions, each one Triton launch.

Memory-bound: the least traffic is one read of the input and of the gradient of the output, and one
write of the gradient of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.activation.kernel import GATED, PLAIN
from search_spaces.kernels.activation_backward.triton_kernels import (
    activation_backward_kernel,
    gated_backward_kernel,
)
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
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Operations of one element, roughly.
_FLOPS = 20.0


class ActivationBackward(Kernel):
    """dx of `activation` from its input x and the gradient dy of its output; dims rows, cols,
    function and dtype.

    dy[rows, cols]; x and dx have its shape, of swiglu and geglu [rows, 2 cols] with the gate in
    front. Nothing of the forward pass but its input is read. dx may be x itself.
    """

    name = "activation_backward"
    edges = SPECIAL_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=MAX_SIZE // 2, function=(*PLAIN, *GATED), dtype=DTYPES)
    small = {"rows": 5, "cols": 333}
    output = "dx"
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 14336, "swiglu", "bfloat16"),  # Llama-3 8B, 8,192 tokens
            (4096, 14336, "swiglu", "bfloat16"),
            (4096, 12288, "swiglu", "bfloat16"),  # Qwen3 8B
            (48000, 5120, "gelu", "float16"),  # Whisper large-v3's encoder, 32 segments
            (4096, 21504, "geglu", "bfloat16"),  # Gemma 3 27B
            (401408, 64, "relu", "float16"),  # ResNet-50's first layer, 32 images
            (65536, 1024, "sigmoid", "float32"),  # a gate of DLRM's interactions
            (16384, 4096, "tanh", "bfloat16"),
            (8191, 4099, "silu", "float32"),
            (8192, 3072, "gelu_tanh", "bfloat16"),  # GPT-2 small
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        width = workload.size("cols") * (2 if _gated(workload) else 1)
        return {
            "x": workload.spec("rows", width, scale=2.0),
            "dy": workload.spec("rows", "cols"),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        width = workload.size("cols") * (2 if _gated(workload) else 1)
        return {"dx": workload.spec("rows", width)}

    def flops(self, workload: Workload) -> float:
        elements = workload.size("rows") * workload.size("cols")
        return _FLOPS * elements

    def space(self, workload: Workload) -> SearchSpace:
        return element_space(_blocked(workload), self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(_blocked(workload))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        operands = tuple(tensors[name] for name in ("x", "dy", "dx"))
        blocked = _blocked(workload)
        constants: dict[str, Any] = {"FUNCTION": workload.text("function")}
        constants |= element_constants(blocked, config)
        if not _gated(workload):
            constants["WIDE"] = counts_wide(blocked, integer(config, "BLOCK"))
            grid = (element_grid(blocked, config),)
            return [Launch(activation_backward_kernel, grid, (*operands, blocked), constants)]
        rows = workload.size("rows")
        parts = rows * ceil_div(blocked, integer(config, "BLOCK"))
        grid = (ceil_div(parts, integer(config, "steps")),)
        constants["COLS"] = blocked
        return [Launch(gated_backward_kernel, grid, (*operands, rows), constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        name = workload.text("function")

        def eager(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
            return gradient_of(name, x, dy)

        return eager


def gradient_of(function: str, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The gradient of an activation by the functions that torch's autograd calls."""
    import torch

    aten = torch.ops.aten
    if function in GATED:
        gate, up = x.chunk(2, dim=-1)
        plain = {"swiglu": "silu", "geglu": "gelu"}[function]
        activated: torch.Tensor = getattr(torch.nn.functional, plain)(gate)
        return torch.cat([gradient_of(plain, gate, dy * up), dy * activated], -1)
    gradients: dict[str, Callable[[], torch.Tensor]] = {
        "relu": lambda: aten.threshold_backward(dy, x, 0),
        "relu1": lambda: aten.hardtanh_backward(dy, x, 0.0, 1.0),
        "sigmoid": lambda: aten.sigmoid_backward(dy, x.sigmoid()),
        "tanh": lambda: aten.tanh_backward(dy, x.tanh()),
        "gelu": lambda: aten.gelu_backward(dy, x),
        "gelu_tanh": lambda: aten.gelu_backward(dy, x, approximate="tanh"),
        "silu": lambda: _silu(x, dy) if torch.is_grad_enabled() else aten.silu_backward(dy, x),
    }
    return gradients[function]()


def _silu(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The one gradient whose function has none itself."""
    share = x.sigmoid()
    return dy * share * (1 + x * (1 - share))


def _gated(workload: Workload) -> bool:
    return workload.text("function") in GATED


def _blocked(workload: Workload) -> int:
    """The elements that blocks divide: of the whole tensor, or of a row where rows are gated."""
    cols = workload.size("cols")
    return cols if _gated(workload) else workload.size("rows") * cols
