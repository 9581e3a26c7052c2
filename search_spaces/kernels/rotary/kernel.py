"""Rotary position embedding of queries and keys in one launch.

Memory-bound: the least traffic is one read and one write of both, and one read of the angles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.kernels.rotary.triton_kernels import rotary_kernel
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

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
    edges = ALL_EDGES
    dims = Dims(
        tokens=int,
        q_heads=_MOST_HEADS,
        k_heads=_MOST_HEADS,
        head_dim=HEAD_DIMS,
        interleaved=bool,
        dtype=DTYPES,
    )
    small = {"tokens": 7, "q_heads": 5, "k_heads": 3, "head_dim": 64}
    elementwise = 1
    output = ("q_out", "k_out")

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 32, 8, 128, False, "bfloat16"),  # Llama-3 8B
            (8192, 64, 8, 128, False, "bfloat16"),  # Llama-3 70B
            (16, 64, 8, 128, False, "bfloat16"),  # the same, decoding 16 requests
            (4096, 64, 8, 64, False, "bfloat16"),  # GPT-OSS 120B
            (4096, 16, 16, 256, True, "float16"),  # GPT-J 6B
            (8192, 128, 1, 64, True, "bfloat16"),  # DeepSeek-V3's decoupled heads
            (2047, 12, 3, 64, False, "float32"),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source = generator(seed, device)
        tokens, half = workload.size("tokens"), workload.size("head_dim") // 2
        inputs = {
            name: random_tensor(workload.spec(*shape), source, device)
            for name, shape in _heads(workload).items()
        }
        angles = random_tensor(
            workload.spec(tokens, half, dtype="float32"), source, device, scale=3.0
        )
        if device == "meta":
            both = workload.spec(tokens, half)
            return inputs | {name: random_tensor(both, None, device) for name in ("cos", "sin")}
        cos, sin = (part.to(inputs["q"].dtype) for part in (angles.cos(), angles.sin()))
        return inputs | {"cos": cos, "sin": sin}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {f"{name}_out": workload.spec(*each) for name, each in _heads(workload).items()}

    def flops(self, workload: Workload) -> float:
        elements = _elements(workload)
        return 3.0 * elements

    def space(self, workload: Workload) -> SearchSpace:
        heads = max(workload.size("q_heads"), workload.size("k_heads"))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_T", 1, min(32, next_power_of_two(workload.size("tokens")))),
            PowerOfTwo("BLOCK_H", 1, min(64, next_power_of_two(heads))),
            PowerOfTwo("num_warps", 1, 16),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_T", "BLOCK_H"))

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

    def eager(self, workload: Workload) -> Callable[..., Any]:
        interleaved = bool(workload["interleaved"])

        def eager(
            q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return _rotated(q, k, cos, sin, interleaved=interleaved)

        return eager


def _heads(workload: Workload) -> dict[str, tuple[int, int, int]]:
    tokens, dim = workload.sizes("tokens", "head_dim")
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
