"""Matrix product out = a @ b: tile sizes, split-K, tensor descriptors, precision, dialect.

For float32, `precision` is a parameter; whether a faster one is admissible is not decided here but
by the workload's `tolerance`, against which every variant is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.dims import Dims, tolerance_of
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.cublas import cublas_products
from search_spaces.kernels.dtypes import ROUNDING
from search_spaces.kernels.limits import LARGEST_SIDE, integer
from search_spaces.kernels.matmul.gluon_space import dense_space, in_gluon
from search_spaces.kernels.matmul.space import takes_descriptors
from search_spaces.kernels.matmul.triton_kernels import (
    descriptor_matmul_kernel,
    matmul_kernel,
    sum_splits_kernel,
)
from search_spaces.kernels.matmul.usual import usual_config
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16", "float32")
_SUM_BLOCK = 1024


class Matmul(Kernel):
    """a[M, K] @ b[K, N]; dims M, N, K, dtype and, optionally, tolerance (relative error).

    On Hopper, 16-bit floats may be multiplied by a kernel in Gluon (`loads`: gluon).
    """

    name = "matmul"
    edges = SPECIAL_EDGES
    dims = Dims(M=LARGEST_SIDE, N=LARGEST_SIDE, K=LARGEST_SIDE, dtype=DTYPES, tolerance=float)

    def workloads(self) -> Sequence[Workload]:
        shapes = [
            (4096, 4096, 4096, "bfloat16"),  # Llama-3 8B, attention's output, 4,096 tokens
            (4096, 4096, 4096, "float16"),
            (4096, 8192, 4096, "bfloat16"),  # Qwen3 235B, queries, 4,096 tokens
            (32, 8192, 4096, "bfloat16"),  # the same, 32 tokens
            (1000, 1003, 997, "float16"),
            (256, 256, 65536, "bfloat16"),
            (2048, 2048, 2048, "float32"),
            (2048, 28672, 4096, "bfloat16"),  # Llama-3 8B, gate and up, 2,048 tokens
            (4096, 4096, 14336, "bfloat16"),  # Llama-3 8B, down, 4,096 tokens
            (2048, 10240, 8192, "bfloat16"),  # Llama-3 70B, q, k and v, 2,048 tokens
            (1024, 8192, 28672, "bfloat16"),  # Llama-3 70B, down, 1,024 tokens
            (2048, 5120, 25600, "bfloat16"),  # Qwen3 32B, down, 2,048 tokens
            (2048, 7168, 16384, "bfloat16"),  # DeepSeek-V3, attention's output, 2,048 tokens
            (8192, 5120, 2880, "bfloat16"),  # GPT-OSS 120B, q, k and v, 8,192 tokens
        ]
        workloads = [Workload.of(M=m, N=n, K=k, dtype=dtype) for m, n, k, dtype in shapes]
        workloads.insert(7, workloads[6].with_dims(tolerance=1e-3))
        return workloads

    def small_workload(self, workload: Workload) -> Workload:
        # Descriptors need rows of whole 16 bytes, so where the workload has them, keep them.
        aligned = takes_descriptors(workload)
        return workload.with_dims(M=71, N=136 if aligned else 137, K=328 if aligned else 331)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, k = workload.sizes("M", "N", "K")
        return {
            "a": workload.spec(m, k),
            # Scaled so that outputs are of the order of one, whatever K.
            "b": workload.spec(k, n, scale=1 / sqrt(k)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "SPLIT_K")
        m, n, _ = workload.sizes("M", "N", "K")
        return {"partial": workload.spec(splits, m, n, dtype="float32")} if splits > 1 else {}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding error of the output or of K sums in float32."""
        usual = ROUNDING[workload.text("dtype")]
        if workload["dtype"] == "float32":
            usual = max(1e-6 * sqrt(workload.size("K")), usual)
        relative = tolerance_of(workload, usual)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return dense_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return usual_config(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if in_gluon(config):
            from search_spaces.kernels.matmul.gluon_launch import gluon_launch

            return [gluon_launch(workload, config, tensors)]
        if config.get("loads") == "descriptor":
            return [_descriptor_launch(workload, config, tensors)]
        if integer(config, "SPLIT_K") == 1:
            return [_pointer_launch(workload, config, tensors, tensors["out"])]
        partial = tensors["partial"]
        return [
            _pointer_launch(workload, config, tensors, partial),
            _sum_launch(partial, tensors["out"]),
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        return cublas_products(workload)


def _tile_constants(config: Config) -> dict[str, Any]:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
    return {
        **{name: config[name] for name in names},
        "PRECISION": config.get("precision", "ieee"),
        "INTERPRETED": bool(triton.knobs.runtime.interpret),
    }


def _tiles(workload: Workload, config: Config) -> int:
    m, n, _ = workload.sizes("M", "N", "K")
    return ceil_div(m, integer(config, "BLOCK_M")) * ceil_div(n, integer(config, "BLOCK_N"))


def _pointer_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor
) -> Launch:
    a, b = tensors["a"], tensors["b"]
    m, n, k = workload.sizes("M", "N", "K")
    splits = integer(config, "SPLIT_K")
    constants = {
        **_tile_constants(config),
        "SPLIT_K": splits,
        "EVEN_M": m % integer(config, "BLOCK_M") == 0,
        "EVEN_N": n % integer(config, "BLOCK_N") == 0,
        "EVEN_K": k % integer(config, "BLOCK_K") == 0,
        "ALIGN_K": min(alignment(k), alignment(a.stride(0))),
        "ALIGN_N": min(alignment(n), alignment(b.stride(0)), alignment(out.stride(-2))),
        # Tiles at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max((m + 256) * k, (k + 256) * n, (m + 256) * n) >= 2**31,
    }
    arguments = (a, b, out, m, n, k, a.stride(0), b.stride(0), out.stride(-2))
    return Launch(matmul_kernel, (_tiles(workload, config), splits), arguments, constants)


def _descriptor_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    blocks = {"a": [block_m, block_k], "b": [block_k, block_n], "out": [block_m, block_n]}
    described = (TensorDescriptor.from_tensor(tensors[name], blocks[name]) for name in blocks)
    persistent = bool(config["persistent"])
    tiles = _tiles(workload, config)
    grid = min(tiles, sm_count(tensors["a"])) if persistent else tiles
    constants = {**_tile_constants(config), "PERSISTENT": persistent}
    arguments = (*described, *workload.sizes("M", "N", "K"))
    return Launch(descriptor_matmul_kernel, (grid,), arguments, constants)


def _sum_launch(partial: torch.Tensor, out: torch.Tensor) -> Launch:
    elements = out.numel()
    constants = {
        "SPLIT_K": partial.shape[0],
        "BLOCK": _SUM_BLOCK,
        "EVEN": elements % _SUM_BLOCK == 0,
    }
    grid = (ceil_div(elements, _SUM_BLOCK),)
    return Launch(sum_splits_kernel, grid, (partial, out, elements), constants)
