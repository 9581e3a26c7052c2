"""Rotary position embedding of queries and keys in one launch.

Memory-bound: the least traffic is one read and one write of both, and one read of the angles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import (
    BLOCK_EXISTS,
    MAX_SIZE,
    fits_registers,
    integer,
    keeps_threads_busy,
)
from search_spaces.kernels.rotary.triton_kernels import rotary_kernel
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

HEAD_DIMS = (64, 128, 256)
_MOST_HEADS = 1024
#: Elements of q or k that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 4


class Rotary(Kernel):
    """Rotated q[tokens, q_heads, head_dim] and k[tokens, k_heads, head_dim]; dims tokens, q_heads,
    k_heads, head_dim, interleaved and dtype.

    interleaved: whether pairs are neighbours (GPT-J) or stand half a head apart (GPT-NeoX, Llama).
    cos and sin of the angles are [tokens, head_dim / 2] in the same dtype.
    """

    name = "rotary"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(8192, 32, 8, 128, False, "bfloat16"),  # Llama-3 8B
            _workload(8192, 64, 8, 128, False, "bfloat16"),  # Llama-3 70B
            _workload(16, 64, 8, 128, False, "bfloat16"),  # the same, decoding 16 requests
            _workload(4096, 64, 8, 64, False, "bfloat16"),  # GPT-OSS 120B
            _workload(4096, 16, 16, 256, True, "float16"),  # GPT-J 6B
            _workload(8192, 128, 1, 64, True, "bfloat16"),  # DeepSeek-V3's decoupled heads
            _workload(2047, 12, 3, 64, False, "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"tokens": MAX_SIZE, "q_heads": _MOST_HEADS, "k_heads": _MOST_HEADS},
            dtypes=DTYPES,
            flags=("interleaved",),
            choices={"head_dim": HEAD_DIMS},
        )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(tokens=7, q_heads=5, k_heads=3, head_dim=64)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source, dtype = generator(seed, device), workload.text("dtype")
        tokens, half = workload.size("tokens"), workload.size("head_dim") // 2
        inputs = {
            name: random_tensor(TensorSpec(shape, dtype), source, device)
            for name, shape in _heads(workload).items()
        }
        angles = random_tensor(TensorSpec((tokens, half), "float32"), source, device, scale=3.0)
        if device == "meta":
            both = TensorSpec((tokens, half), dtype)
            return inputs | {name: random_tensor(both, None, device) for name in ("cos", "sin")}
        cos, sin = (part.to(inputs["q"].dtype) for part in (angles.cos(), angles.sin()))
        return inputs | {"cos": cos, "sin": sin}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        dtype = workload.text("dtype")
        return {f"{name}_out": TensorSpec(each, dtype) for name, each in _heads(workload).items()}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = (inputs[name].double() for name in ("q", "k", "cos", "sin"))
        q_out, k_out = _rotated(*exact, interleaved=bool(workload["interleaved"]))
        return {"q_out": q_out, "k_out": k_out}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        elements = _elements(workload)
        angles = workload.size("tokens") * workload.size("head_dim")
        each = ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=3.0 * elements, bytes=float((2 * elements + angles) * each))

    def space(self, workload: Workload) -> SearchSpace:
        heads = max(workload.size("q_heads"), workload.size("k_heads"))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_T", 1, min(32, next_power_of_two(workload.size("tokens")))),
            PowerOfTwo("BLOCK_H", 1, min(64, next_power_of_two(heads))),
            PowerOfTwo("num_warps", 1, 16),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        """One token and all its heads, as far as four warps hold them."""
        most = 4 * (device.warp_size or 32) * _MOST_HELD // workload.size("head_dim")
        heads = next_power_of_two(workload.size("q_heads"))
        held = min(heads, most, 32)
        warps = max(1, min(4, held * workload.size("head_dim") // 256))
        return {"BLOCK_T": 1, "BLOCK_H": held, "num_warps": warps}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        tokens, block = workload.size("tokens"), integer(config, "BLOCK_H")
        heads = (workload.size("q_heads"), workload.size("k_heads"))
        grid = (
            ceil_div(tokens, integer(config, "BLOCK_T")),
            sum(ceil_div(count, block) for count in heads),
        )
        names = ("q", "k", "cos", "sin", "q_out", "k_out")
        constants = {
            "Q_HEADS": heads[0],
            "K_HEADS": heads[1],
            "HALF": workload.size("head_dim") // 2,
            "BLOCK_T": config["BLOCK_T"],
            "BLOCK_H": block,
            "INTERLEAVED": workload["interleaved"],
            "num_warps": config["num_warps"],
        }
        arguments = (*(tensors[name] for name in names), tokens)
        return [Launch(rotary_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        interleaved = bool(workload["interleaved"])

        def eager(
            q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return _rotated(q, k, cos, sin, interleaved=interleaved)

        outputs, inputs = ("q_out", "k_out"), ("q", "k", "cos", "sin")
        return {
            "eager": named(outputs, eager, *inputs),
            "compile": named(outputs, compiled(eager), *inputs),
        }


def _workload(
    tokens: int, q_heads: int, k_heads: int, head_dim: int, interleaved: bool, dtype: str
) -> Workload:
    return Workload.of(
        tokens=tokens,
        q_heads=q_heads,
        k_heads=k_heads,
        head_dim=head_dim,
        interleaved=interleaved,
        dtype=dtype,
    )


def _heads(workload: Workload) -> dict[str, tuple[int, int, int]]:
    tokens, dim = workload.size("tokens"), workload.size("head_dim")
    return {name: (tokens, workload.size(f"{name}_heads"), dim) for name in ("q", "k")}


def _elements(workload: Workload) -> int:
    heads = workload.size("q_heads") + workload.size("k_heads")
    return workload.size("tokens") * heads * workload.size("head_dim")


def _rotated(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both rotated, as users of torch write it."""
    import torch

    cos, sin = cos[:, None, :], sin[:, None, :]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        if interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    return rotated(q), rotated(k)


def _held(config: Config, workload: Workload) -> int:
    rows = integer(config, "BLOCK_T") * integer(config, "BLOCK_H")
    return rows * workload.size("head_dim")


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_held, _MOST_HELD),
    keeps_threads_busy(_held, _LEAST_HELD),
)
