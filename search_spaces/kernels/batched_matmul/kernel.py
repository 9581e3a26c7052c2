"""Batches of matrix products: out[i] = a[i] @ b[i], with transposed and shared factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.batched_matmul.space import (
    batched_space,
    product_of,
    stored_shape,
    takes_descriptors,
)
from search_spaces.kernels.batched_matmul.triton_kernels import (
    batched_matmul_kernel,
    descriptor_batched_matmul_kernel,
)
from search_spaces.kernels.cublas import cublas_products
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.kernels.products import product_tolerance, tiles, usual_point
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

if TYPE_CHECKING:
    import torch

#: Which factor all products share.
SHARED = ("none", "a", "b")
#: Tiles at the edge end up to one block beyond the matrix; the tiles of all products are counted.
_LARGEST_BLOCK = 256
_LARGEST, _MOST = MAX_SIZE - _LARGEST_BLOCK, 1 << 22


class BatchedMatmul(Kernel):
    """out[batch, M, N], each a[M, K] @ b[K, N]; dims batch, M, N, K, transpose_a, transpose_b,
    shared, dtype and, optionally, tolerance (relative error).

    transpose_a: a is stored as [batch, K, M]. transpose_b: b is stored as [batch, N, K]. shared:
    a or b where that factor is one matrix for all products, else none.
    """

    name = "batched_matmul"
    edges = SPECIAL_EDGES
    dims = Dims(
        batch=_MOST,
        M=_LARGEST,
        N=_LARGEST,
        K=_LARGEST,
        transpose_a=bool,
        transpose_b=bool,
        shared=SHARED,
        dtype=DTYPES,
        tolerance=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return [
            # Llama-3 8B, 2 sequences: scores of all heads, and scores times values.
            _workload(64, (2048, 2048, 128), "bfloat16", transposed="b"),
            _workload(64, (2048, 128, 2048), "bfloat16"),
            # DeepSeek-V3, 128 tokens: queries into the latent space, latents into values.
            _workload(128, (128, 512, 128), "bfloat16"),
            _workload(128, (128, 128, 512), "bfloat16"),
            _workload(160, (1500, 1500, 64), "float16", transposed="b"),  # Whisper large-v3
            _workload(8192, (27, 27, 128), "float16", transposed="b"),  # DLRM's interactions
            _workload(8, (4096, 14336, 1024), "bfloat16", transposed="a"),  # Mixtral's gradients
            _workload(256, (384, 768, 196), "bfloat16", shared="a"),  # MLP-Mixer B/16, tokens
            _workload(64, (256, 256, 256), "float32"),
            _workload(33, (101, 203, 307), "float16", transposed="ab"),
        ]

    def small_workload(self, workload: Workload) -> Workload:
        # Where the workload takes descriptors, keep rows of whole 16 bytes.
        if takes_descriptors(workload):
            return workload.with_dims(batch=3, M=40, N=72, K=136)
        return workload.with_dims(batch=3, M=37, N=71, K=131)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scaled so that outputs are of the order of one, whatever K.
        scales = {"a": 1.0, "b": 1 / sqrt(workload.size("K"))}
        return {
            name: workload.spec(*stored_shape(workload, name), scale=scale)
            for name, scale in scales.items()
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = tuple(workload.size(dim) for dim in ("batch", "M", "N"))
        return {"out": workload.spec(*shape)}

    def tolerance(self, workload: Workload) -> Tolerance:
        return product_tolerance(workload)

    def flops(self, workload: Workload) -> float:
        batch, m, n, k = workload.sizes("batch", "M", "N", "K")
        return 2.0 * batch * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return batched_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return usual_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
        constants: dict[str, Any] = {
            **{name: config[name] for name in names},
            "TRANSPOSE_A": workload["transpose_a"],
            "TRANSPOSE_B": workload["transpose_b"],
            "SHARED": workload["shared"],
            "PRECISION": config.get("precision", "ieee"),
        }
        if config.get("loads") == "descriptor":
            return [_descriptor_launch(workload, config, tensors, constants)]
        return [_pointer_launch(workload, config, tensors, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            left, right = _oriented(workload, a, b)
            return left @ right

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        def oriented(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            def vendor(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                factors = _oriented(workload, a, b)
                return product(*(each.expand(workload.size("batch"), -1, -1) for each in factors))

            return vendor

        return {name: oriented(product) for name, product in cublas_products(workload).items()}


def _workload(
    batch: int,
    sizes: tuple[int, int, int],
    dtype: str,
    *,
    transposed: str = "",
    shared: str = "none",
) -> Workload:
    """sizes: M, N and K. transposed: the factors that are stored so, such as `ab`."""
    m, n, k = sizes
    transposes = {f"transpose_{name}": name in transposed for name in ("a", "b")}
    return Workload.of(batch=batch, M=m, N=n, K=k, **transposes, shared=shared, dtype=dtype)


def _oriented(
    workload: Workload, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both factors as views [batch or 1, M, K] and [batch or 1, K, N]."""
    left = a.transpose(1, 2) if workload["transpose_a"] else a
    right = b.transpose(1, 2) if workload["transpose_b"] else b
    return left, right


def _programs(workload: Workload, config: Config) -> int:
    return workload.size("batch") * tiles(product_of(config, workload), config)


def _pointer_launch(
    workload: Workload, config: Config, tensors: Tensors, constants: dict[str, Any]
) -> Launch:
    sizes = {dim: workload.size(dim) for dim in "MNK"}
    m, n, k = sizes.values()
    for dim, size in sizes.items():
        constants[f"EVEN_{dim}"] = size % integer(config, f"BLOCK_{dim}") == 0
        constants[f"ALIGN_{dim}"] = alignment(size)
    # Tiles at the edge compute addresses of up to one block beyond the matrix.
    edge = _LARGEST_BLOCK
    m, n, k = m + edge, n + edge, k + edge
    constants["WIDE"] = max(m * k, n * k, m * n) > MAX_SIZE
    arguments = (tensors["a"], tensors["b"], tensors["out"], *sizes.values())
    return Launch(batched_matmul_kernel, (_programs(workload, config),), arguments, constants)


def _descriptor_launch(
    workload: Workload, config: Config, tensors: Tensors, constants: dict[str, Any]
) -> Launch:
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    blocks = {"a": [1, block_m, block_k], "b": [1, block_k, block_n], "out": [1, block_m, block_n]}
    for name in ("a", "b"):
        if workload[f"transpose_{name}"]:
            blocks[name] = [1, *reversed(blocks[name][1:])]
    described = (TensorDescriptor.from_tensor(tensors[name], blocks[name]) for name in blocks)
    persistent, programs = bool(config["persistent"]), _programs(workload, config)
    grid = min(programs, sm_count(tensors["a"])) if persistent else programs
    sizes = (workload.size(dim) for dim in ("batch", "M", "N", "K"))
    constants["PERSISTENT"] = persistent
    arguments = (*described, *sizes)
    return Launch(descriptor_batched_matmul_kernel, (grid,), arguments, constants)
