"""Activation functions, each one Triton launch.

Memory-bound: the least traffic is one read of the input and one write of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.activation.triton_kernels import activation_kernel, gated_kernel
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.elements import (
    default_point,
    element_constants,
    element_grid,
    element_space,
)
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor, scripted

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

    Function = Callable[[torch.Tensor], torch.Tensor]

#: Functions of one element, and those of a gate and a value, which stand in the halves of a row.
PLAIN = ("relu", "relu1", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
GATED = ("swiglu", "geglu")
#: Operations of one element, roughly.
_FLOPS = 10.0
_SMALL_ROWS, _SMALL_COLS = 5, 333


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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 14336, "swiglu", "bfloat16"),  # Llama-3 8B, 8,192 tokens
            _workload(16, 28672, "swiglu", "bfloat16"),  # Llama-3 70B, decoding 16 requests
            _workload(4096, 12288, "swiglu", "bfloat16"),  # Qwen3 8B
            _workload(48000, 5120, "gelu", "float16"),  # Whisper large-v3's encoder, 32 segments
            _workload(4096, 21504, "geglu", "bfloat16"),  # Gemma 3 27B
            _workload(401408, 64, "relu", "float16"),  # ResNet-50's first layer, 32 images
            _workload(100352, 256, "relu1", "bfloat16"),
            _workload(65536, 1024, "sigmoid", "float32"),  # a gate of DLRM's interactions
            _workload(16384, 4096, "tanh", "bfloat16"),
            _workload(8191, 4099, "silu", "float32"),
            _workload(8192, 3072, "gelu_tanh", "bfloat16"),  # GPT-2 small
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"rows": MAX_SIZE, "cols": MAX_SIZE // 2},
            dtypes=DTYPES,
            choices={"function": (*PLAIN, *GATED)},
        )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=_SMALL_ROWS, cols=_SMALL_COLS)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        width = workload.size("cols") * (2 if _gated(workload) else 1)
        spec = TensorSpec((workload.size("rows"), width), workload.text("dtype"))
        return {"x": random_tensor(spec, generator(seed, device), device, scale=2.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"), workload.size("cols"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": _torch_function(workload.text("function"))(inputs["x"].double())}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = workload.size("rows") * workload.size("cols")
        tensors = 3.0 if _gated(workload) else 2.0
        moved = tensors * elements * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=_FLOPS * elements, bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        return element_space(_blocked(workload), self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(_blocked(workload))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out, function = tensors["x"], tensors["out"], workload.text("function")
        blocked = _blocked(workload)
        constants: dict[str, Any] = {"FUNCTION": function, **element_constants(blocked, config)}
        if not _gated(workload):
            grid = (element_grid(blocked, config),)
            return [Launch(activation_kernel, grid, (x, out, blocked), constants)]
        rows = workload.size("rows")
        parts = rows * ceil_div(blocked, integer(config, "BLOCK"))
        grid = (ceil_div(parts, integer(config, "steps")),)
        constants["COLS"] = blocked
        return [Launch(gated_kernel, grid, (x, out, rows), constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        name = workload.text("function")

        def eager(x: torch.Tensor) -> torch.Tensor:
            return _torch_function(name)(x)

        found = {
            "eager": named("out", eager, "x"),
            "compile": named("out", compiled(eager), "x"),
            "torchscript": named("out", scripted(eager), "x"),
        }
        if name == "relu1":
            found["clamp"] = named("out", _relu1_clamp, "x")
            found["clamp_"] = named("out", _relu1_clamp_, "x")
            found["torchscript_clamp"] = named("out", scripted(_relu1_clamp), "x")
        return found


def _workload(rows: int, cols: int, function: str, dtype: str) -> Workload:
    return Workload.of(rows=rows, cols=cols, function=function, dtype=dtype)


def _gated(workload: Workload) -> bool:
    return workload.text("function") in GATED


def _blocked(workload: Workload) -> int:
    """The elements that blocks divide: of the whole tensor, or of a row where rows are gated."""
    cols = workload.size("cols")
    return cols if _gated(workload) else workload.size("rows") * cols
