"""Batches of matrix products: out[i] = a[i] @ b[i], with transposed and shared factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import alignment
from search_spaces.declaration.dimensions import check_dims
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
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
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.launch_limits import MAX_SIZE, integer
from search_spaces.kernels.products import product_tolerance, tiles, usual_point
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor, sm_count

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

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

    def check_workload(self, workload: Workload) -> None:
        check_dims(
            self.name,
            workload,
            sizes={"batch": _MOST, "M": _LARGEST, "N": _LARGEST, "K": _LARGEST},
            dtypes=DTYPES,
            flags=("transpose_a", "transpose_b"),
            choices={"shared": SHARED},
            optional=("tolerance",),
        )

    def small_workload(self, workload: Workload) -> Workload:
        # Where the workload takes descriptors, keep rows of whole 16 bytes.
        if takes_descriptors(workload):
            return workload.with_dims(batch=3, M=40, N=72, K=136)
        return workload.with_dims(batch=3, M=37, N=71, K=131)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        dtype, source = workload.text("dtype"), generator(seed, device)
        a, b = (TensorSpec(stored_shape(workload, name), dtype) for name in ("a", "b"))
        # Scaled so that outputs are of the order of one, whatever K.
        scale = 1 / sqrt(workload.size("K"))
        return {
            "a": random_tensor(a, source, device),
            "b": random_tensor(b, source, device, scale=scale),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = tuple(workload.size(dim) for dim in ("batch", "M", "N"))
        return {"out": TensorSpec(shape, workload.text("dtype"))}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        a, b = _oriented(workload, inputs["a"].double(), inputs["b"].double())
        return {"out": a @ b}

    def tolerance(self, workload: Workload) -> Tolerance:
        return product_tolerance(workload)

    def cost(self, workload: Workload) -> Cost:
        batch, m, n, k = (workload.size(dim) for dim in ("batch", "M", "N", "K"))
        counts = {name: stored_shape(workload, name)[0] for name in ("a", "b")}
        elements = counts["a"] * m * k + counts["b"] * k * n + batch * m * n
        each = ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=2.0 * batch * m * n * k, bytes=float(elements * each))

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            left, right = _oriented(workload, a, b)
            return left @ right

        def by_cublas(precision: str) -> Callable[[Tensors], Tensors]:
            cublas = _Cublas(precision)

            def vendor(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return cublas(workload.size("batch"), *_oriented(workload, a, b))

            return named("out", vendor, "a", "b")

        found = {
            "eager": named("out", eager, "a", "b"),
            "compile": named("out", compiled(eager), "a", "b"),
            "vendor": by_cublas("ieee"),
        }
        if workload["dtype"] == "float32":
            found["vendor_tf32"] = by_cublas("tf32")
        return found


class _Cublas:
    """cuBLAS by `torch.bmm(a, b, out=...)` into one buffer; float32 in `precision`."""

    def __init__(self, precision: str) -> None:
        self._precision = precision
        self._out: torch.Tensor | None = None

    def __call__(self, count: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        import torch

        if a.device.type != "cuda":
            raise RuntimeError(f"cuBLAS needs CUDA tensors, got one on {a.device.type}")
        shape = (count, a.shape[1], b.shape[2])
        out = self._out
        if out is None or (out.shape, out.dtype, out.device) != (shape, a.dtype, a.device):
            out = self._out = torch.empty(shape, dtype=a.dtype, device=a.device)
        settings = torch.backends.cuda.matmul
        before = settings.fp32_precision
        settings.fp32_precision = self._precision
        try:
            return torch.bmm(a.expand(count, -1, -1), b.expand(count, -1, -1), out=out)
        finally:
            settings.fp32_precision = before


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
    return Workload.of(batch=batch, M=m, N=n, K=k, shared=shared, dtype=dtype, **transposes)


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
