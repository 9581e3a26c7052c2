"""Few rows times a weight matrix, as each layer of a decoding model multiplies.

Memory-bound: the least traffic is one read of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.cublas import Cublas
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.gemv.space import DOT_ROWS, default_point, gemv_space, uses_dot
from search_spaces.kernels.gemv.triton_kernels import gemv_dot_kernel, gemv_kernel
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.matmul.triton_kernels import sum_splits_kernel
from search_spaces.kernels.products import product_tolerance
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Blocks at the edge end up to one block beyond the matrix.
_LONGEST_BLOCK = 4096
_LARGEST = MAX_SIZE - _LONGEST_BLOCK
_SUM_BLOCK, _SUM_WARPS = 256, 2


class Gemv(Kernel):
    """x[M, K] @ w^T of up to 16 rows; dims M, N, K, dtype and, optionally, tolerance (relative
    error).

    Weights w are [N, K], as `torch.nn.Linear` holds them. The parameter `product` says whether up
    to four rows are multiplied lane by lane (`multiply_add`) or, padded to 16 rows, by tensor cores
    (`dot`), which multiply all larger numbers of rows.
    """

    name = "gemv"
    edges = SPECIAL_EDGES
    dims = Dims(M=DOT_ROWS, N=_LARGEST, K=_LARGEST, dtype=DTYPES, tolerance=float)
    small = {"N": 71, "K": 333}

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1, 6144, 4096, "bfloat16"),  # Llama-3 8B, q, k and v
            (1, 4096, 14336, "bfloat16"),  # Llama-3 8B, down
            (1, 57344, 8192, "bfloat16"),  # Llama-3 70B, gate and up
            (1, 128256, 4096, "bfloat16"),  # Llama-3 8B, logits
            (4, 10240, 8192, "bfloat16"),  # Llama-3 70B, q, k and v, 4 requests
            (8, 5120, 25600, "bfloat16"),  # Qwen3 32B, down, 8 requests
            (16, 8192, 8192, "bfloat16"),  # Llama-3 70B, attention's output, 16 requests
            (5, 51866, 1280, "float16"),  # Whisper large-v3, logits of 5 beams
            (1, 5120, 5120, "float32"),
            (3, 1003, 997, "float16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, k = workload.sizes("M", "N", "K")
        return {
            "x": workload.spec(m, k),
            # Scaled so that outputs are of the order of one, whatever K.
            "w": workload.spec(n, k, scale=1 / sqrt(k)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n)}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "SPLIT_K")
        m, n, _ = workload.sizes("M", "N", "K")
        return {"partial": workload.spec(splits, m, n, dtype="float32")} if splits > 1 else {}

    def tolerance(self, workload: Workload) -> Tolerance:
        return product_tolerance(workload)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return gemv_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if integer(config, "SPLIT_K") == 1:
            return [_product_launch(workload, config, tensors, tensors["out"])]
        partial, out = tensors["partial"], tensors["out"]
        return [
            _product_launch(workload, config, tensors, partial),
            _sum_launch(partial, out),
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.linear(x, w)

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        cublas = Cublas()

        def vendor(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return cublas(x, w.t())

        return {"vendor": vendor}


def _product_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor
) -> Launch:
    x, w = tensors["x"], tensors["w"]
    m, n, k = workload.sizes("M", "N", "K")
    block_n, block_k = integer(config, "BLOCK_N"), integer(config, "BLOCK_K")
    constants: dict[str, Any] = {
        "M": m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "SPLIT_K": config["SPLIT_K"],
        "EVEN_N": n % block_n == 0,
        "EVEN_K": k % block_k == 0,
        "ALIGN_K": alignment(k),
        # Blocks at the edge compute addresses of up to one block beyond the matrix.
        "WIDE": max(n * k, DOT_ROWS * max(n, k)) + _LONGEST_BLOCK > MAX_SIZE,
        "num_warps": config["num_warps"],
    }
    arguments = (x, w, out, n, k, x.stride(0), w.stride(0), out.stride(-2))
    grid = (ceil_div(n, block_n), integer(config, "SPLIT_K"))
    if uses_dot(config, workload):
        constants |= {"ROWS": DOT_ROWS, "num_stages": config["num_stages"]}
        return Launch(gemv_dot_kernel, grid, arguments, constants)
    constants["LOAD_STAGES"] = config["num_stages"]
    return Launch(gemv_kernel, grid, arguments, constants)


def _sum_launch(partial: torch.Tensor, out: torch.Tensor) -> Launch:
    elements = out.numel()
    constants = {
        "SPLIT_K": partial.shape[0],
        "BLOCK": _SUM_BLOCK,
        "EVEN": elements % _SUM_BLOCK == 0,
        "num_warps": _SUM_WARPS,
    }
    grid = (ceil_div(elements, _SUM_BLOCK),)
    return Launch(sum_splits_kernel, grid, (partial, out, elements), constants)
