"""Few rows times a weight matrix, as each layer of a decoding model multiplies.

Memory-bound: the least traffic is one read of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import alignment, ceil_div
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.gemv.space import DOT_ROWS, default_point, gemv_space, uses_dot
from search_spaces.kernels.gemv.triton_kernels import gemv_dot_kernel, gemv_kernel
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.kernels.matmul.kernel import Matmul
from search_spaces.kernels.matmul.triton_kernels import sum_splits_kernel
from search_spaces.kernels.products import product_tolerance
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

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

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(1, 6144, 4096, "bfloat16"),  # Llama-3 8B, q, k and v
            _workload(1, 4096, 14336, "bfloat16"),  # Llama-3 8B, down
            _workload(1, 57344, 8192, "bfloat16"),  # Llama-3 70B, gate and up
            _workload(1, 128256, 4096, "bfloat16"),  # Llama-3 8B, logits
            _workload(4, 10240, 8192, "bfloat16"),  # Llama-3 70B, q, k and v, 4 requests
            _workload(8, 5120, 25600, "bfloat16"),  # Qwen3 32B, down, 8 requests
            _workload(16, 8192, 8192, "bfloat16"),  # Llama-3 70B, attention's output, 16 requests
            _workload(5, 51866, 1280, "float16"),  # Whisper large-v3, logits of 5 beams
            _workload(1, 5120, 5120, "float32"),
            _workload(3, 1003, 997, "float16"),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"M": DOT_ROWS, "N": _LARGEST, "K": _LARGEST}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, optional=("tolerance",))

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(N=71, K=333)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        m, n, k = _sizes(workload)
        dtype, source = workload.text("dtype"), generator(seed, device)
        return {
            "x": random_tensor(TensorSpec((m, k), dtype), source, device),
            # Scaled so that outputs are of the order of one, whatever K.
            "w": random_tensor(TensorSpec((n, k), dtype), source, device, scale=1 / sqrt(k)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = _sizes(workload)
        return {"out": TensorSpec((m, n), workload.text("dtype"))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "SPLIT_K")
        m, n, _ = _sizes(workload)
        return {"partial": TensorSpec((splits, m, n), "float32")} if splits > 1 else {}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": inputs["x"].double() @ inputs["w"].double().t()}

    def tolerance(self, workload: Workload) -> Tolerance:
        return product_tolerance(workload)

    def cost(self, workload: Workload) -> Cost:
        m, n, k = _sizes(workload)
        elements = m * k + k * n + m * n
        each = ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=2.0 * m * n * k, bytes=float(elements * each))

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.linear(x, w)

        cublas = Matmul().baselines(workload)["vendor"]

        def vendor(inputs: Tensors) -> Tensors:
            return cublas({"a": inputs["x"], "b": inputs["w"].t()})

        return {
            "eager": named("out", eager, "x", "w"),
            "compile": named("out", compiled(eager), "x", "w"),
            "vendor": vendor,
        }


def _workload(m: int, n: int, k: int, dtype: str) -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype=dtype)


def _sizes(workload: Workload) -> tuple[int, int, int]:
    return workload.size("M"), workload.size("N"), workload.size("K")


def _product_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor
) -> Launch:
    x, w = tensors["x"], tensors["w"]
    m, n, k = _sizes(workload)
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
        "WIDE": n * k + _LONGEST_BLOCK > MAX_SIZE,
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
