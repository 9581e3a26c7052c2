"""Matrix product with weights of four bits that are dequantized in the kernel.

With few rows the weights' bytes bound the time; with many, the arithmetic. There is no vendor
baseline: torch's own kernel (`_weight_int4pack_mm`) takes a packing of its own, which it makes from
plain weights, and making it would be timed with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import triton

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.int4_matmul.space import GROUP, default_point, int4_space, output_tiles
from search_spaces.kernels.int4_matmul.triton_kernels import int4_matmul_kernel
from search_spaces.kernels.limits import LARGEST_SIDE, MAX_SIZE, integer
from search_spaces.kernels.scaled_tiles import partial_specs, sum_launch
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
#: The root mean square of a uniform number of four bits less a uniform zero point.
_USUAL_WEIGHT = 6.3


class Int4Matmul(Kernel):
    """out[M, N] = a[M, K] @ W[N, K]^T with W of four bits; dims M, N, K and dtype.

    K is a multiple of 128, the weights of a row that share a scale and a zero point:
    W = (q - zero) * scale, with scale and zero [K / 128, N]. w[K / 128, N, 64] has two q in a byte:
    byte i of a group has q number i in its low half and number i + 64 in its high half. dtype: of
    a, scale and out.
    """

    name = "int4_matmul"
    edges = SPECIAL_EDGES
    dims = Dims(M=LARGEST_SIDE, N=LARGEST_SIDE // GROUP, K=LARGEST_SIDE, dtype=DTYPES)

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 28672, 4096, "float16"),  # Llama-3 8B, gate and up, one token
            (1, 4096, 14336, "float16"),  # Llama-3 8B, down, one token
            (16, 6144, 4096, "bfloat16"),  # Llama-3 8B, queries, keys and values
            (16, 57344, 8192, "bfloat16"),  # Llama-3 70B, gate and up, decoding
            (64, 8192, 28672, "bfloat16"),  # Llama-3 70B, down, decoding
            (64, 4096, 7168, "bfloat16"),  # DeepSeek-V3, gate and up of an expert
            (4096, 28672, 4096, "bfloat16"),  # Llama-3 8B, gate and up, prefill
            (2048, 5120, 25600, "float16"),  # Qwen3 32B, down, prefill
            (1000, 1003, 896, "float16"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        k = workload.size("K")
        if k % GROUP:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: K is {k}, not a multiple of {GROUP}",
                f"give K={ceil_div(k, GROUP) * GROUP}, with zeros beyond the last weight",
            )

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(M=min(37, workload.size("M")), N=137, K=3 * GROUP)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        m, n, k = workload.sizes("M", "N", "K")
        source, groups = generator(seed, device), k // GROUP
        # Outputs are of the order of one, whatever K.
        usual = 1 / (_USUAL_WEIGHT * sqrt(k))
        packed = workload.spec(groups, n, GROUP // 2, dtype="uint8")
        zero = workload.spec(groups, n, dtype="uint8")
        scale = random_tensor(workload.spec(groups, n), source, device, scale=usual)
        return {
            "a": random_tensor(workload.spec(m, k), source, device),
            "w": random_tensor(packed, source, device, limits=(0, 256)),
            # Positive, and none close to zero.
            "scale": scale if device == "meta" else scale.abs_().add_(0.5 * usual),
            "zero": random_tensor(zero, source, device, limits=(1, 16)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return partial_specs(workload, config)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return int4_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if integer(config, "SPLIT_K") == 1:
            return [_tile_launch(workload, config, tensors, tensors["out"])]
        partial = tensors["partial"]
        return [
            _tile_launch(workload, config, tensors, partial),
            sum_launch(partial, tensors["out"]),
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(
            a: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
        ) -> torch.Tensor:
            return a @ _dequantized(w, scale, zero.to(scale.dtype)).T

        return eager


def _dequantized(w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The weights [N, K] in the dtype of `scale`."""
    import torch

    q = torch.cat((w & 15, w >> 4), dim=2).to(scale.dtype)
    groups, n, _ = w.shape
    weights = (q - zero[:, :, None]) * scale[:, :, None]
    return weights.permute(1, 0, 2).reshape(n, groups * GROUP)


def _tile_launch(workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor) -> Launch:
    m, n, k = workload.sizes("M", "N", "K")
    a, splits = tensors["a"], integer(config, "SPLIT_K")
    names = ("BLOCK_M", "BLOCK_N", "GROUP_M", "num_warps", "num_stages")
    constants = {
        **{name: config[name] for name in names},
        "SPLIT_K": splits,
        "EVEN_M": m % integer(config, "BLOCK_M") == 0,
        "EVEN_N": n % integer(config, "BLOCK_N") == 0,
        "ALIGN_N": min(alignment(n), alignment(out.stride(-2))),
        # Tiles at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max((m + 256) * k, (n + 256) * k // 2, (m + 256) * n) >= MAX_SIZE,
        "SCALE_SUMS": config["scale_sums"],
        # The interpreter runs no instructions of a device.
        "PACKED": bool(config["packed"]) and not triton.knobs.runtime.interpret,
    }
    operands = (a, tensors["w"], tensors["scale"], tensors["zero"], out)
    arguments = (*operands, m, n, k, a.stride(0), out.stride(-2))
    grid = (output_tiles(config, workload), splits)
    return Launch(int4_matmul_kernel, grid, arguments, constants)
