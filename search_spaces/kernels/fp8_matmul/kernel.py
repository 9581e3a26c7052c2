"""Matrix product of float8 codes with scales, to bfloat16: by tensor, by row or by blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims, tolerance_of
from search_spaces.edges import ALL_EDGES
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.codes import FLOAT8, random_codes, random_scales
from search_spaces.kernels.fp8_matmul.gluon_space import fp8_space
from search_spaces.kernels.limits import LARGEST_SIDE
from search_spaces.kernels.scaled_tiles import (
    GROUP,
    default_point,
    in_gluon,
    partial_specs,
    scale_shapes,
    scaled_launches,
    takes_descriptors,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator

if TYPE_CHECKING:
    import torch

SCALES = ("tensor", "row", "block128")
#: torch._scaled_mm takes N and K in multiples of this.
_MULTIPLE = 16
#: Rounding to bfloat16 causes 2e-3. Sums that Hopper's tensor cores truncate to 14 bits shrink by a
#: few 1e-3 more (DeepSeek-V3 Technical Report, 2024, section 3.3.2), and the operands' own rounding
#: to float8 is ten times as large.
_TOLERANCE = 1e-2


class Fp8Matmul(Kernel):
    """out[M, N] of codes a[M, K] and b[N, K] with scales; dims M, N, K, scales and dtype.

    scales: `tensor` (one of each operand), `row` (one of each row of a and of b) or `block128` (one
    of each 128 elements of a row of a, a_scale[K / 128, M], and of each 128 x 128 of b). dtype:
    float8_e4m3fn, of both operands; the output is bfloat16. Optionally, tolerance is the relative
    error that the workload accepts. On Hopper, large products may be computed by a kernel in Gluon
    (`loads`: gluon).
    """

    name = "fp8_matmul"
    edges = ALL_EDGES
    dims = Dims(
        M=LARGEST_SIDE,
        N=LARGEST_SIDE,
        K=LARGEST_SIDE,
        scales=SCALES,
        dtype=(FLOAT8,),
        tolerance=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 6144, 4096, "row", FLOAT8),  # Llama-3 8B, queries, keys and values
            (4096, 28672, 4096, "row", FLOAT8),  # Llama-3 8B, gate and up
            (4096, 4096, 14336, "tensor", FLOAT8),  # Llama-3 8B, down
            (8192, 8192, 8192, "tensor", FLOAT8),  # Llama-3 70B, output of attention
            (16, 57344, 8192, "row", FLOAT8),  # Llama-3 70B, gate and up, decoding
            (64, 8192, 28672, "row", FLOAT8),  # Llama-3 70B, down, decoding
            (2048, 5120, 8192, "row", FLOAT8),  # Qwen3 32B, output of attention
            (4096, 24576, 1536, "block128", FLOAT8),  # DeepSeek-V3, queries
            (4096, 7168, 16384, "block128", FLOAT8),  # DeepSeek-V3, output of attention
            (4096, 4096, 7168, "block128", FLOAT8),  # DeepSeek-V3, gate and up of an expert
            (64, 7168, 2048, "block128", FLOAT8),  # DeepSeek-V3, down of an expert, decoding
            (1000, 1003, 997, "row", FLOAT8),
        )

    def small_workload(self, workload: Workload) -> Workload:
        # Descriptors need rows of whole 16 bytes, so where the workload has them, keep them.
        depth = 208 if takes_descriptors(workload) else 203
        width = 136 if workload.size("N") % 8 == 0 else 137
        return workload.with_dims(M=min(37, workload.size("M")), N=width, K=depth)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        m, n, k = workload.sizes("M", "N", "K")
        source = generator(seed, device)
        a_shape, b_shape = scale_shapes(workload, workload.text("scales"))
        return {
            "a": random_codes((m, k), FLOAT8, source, device),
            "b": random_codes((n, k), FLOAT8, source, device),
            "a_scale": random_scales(a_shape, FLOAT8, source, device),
            # Outputs are of the order of one, whatever K.
            "b_scale": random_scales(b_shape, FLOAT8, source, device, 1 / sqrt(k)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n, dtype="bfloat16")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return partial_specs(workload, config)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = {name: tensor.double() for name, tensor in inputs.items()}
        a, b = _dequantized(workload.text("scales"), **exact)
        return {"out": a @ b.T}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = tolerance_of(workload, _TOLERANCE)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return fp8_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        if in_gluon(config):
            from search_spaces.kernels.fp8_matmul.gluon_launch import gluon_launch

            return [gluon_launch(workload, config, tensors)]
        return scaled_launches(workload, config, tensors, workload.text("scales"))

    def eager(self, workload: Workload) -> Callable[..., Any]:
        scales = workload.text("scales")

        def eager(
            a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
        ) -> torch.Tensor:
            wide_a, wide_b = _dequantized(scales, a.float(), b.float(), a_scale, b_scale)
            return wide_a.bfloat16() @ wide_b.bfloat16().T

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        scales = workload.text("scales")
        fast = {} if scales == "block128" else {"vendor_fast": _ScaledMm(scales, fast=True)}
        return {"vendor": _ScaledMm(scales), **fast}


class _ScaledMm:
    """cuBLASLt or CUTLASS by `torch._scaled_mm`; `fast` sums in the tensor cores alone."""

    def __init__(self, scales: str, *, fast: bool = False) -> None:
        self._scales, self._fast = scales, fast

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> torch.Tensor:
        import torch

        if a.device.type != "cuda":
            raise RuntimeError(f"torch._scaled_mm needs CUDA tensors, got one on {a.device.type}")
        if any(size % _MULTIPLE for size in b.shape):
            shape = f"N={b.shape[0]}, K={b.shape[1]}"
            raise RuntimeError(f"torch._scaled_mm needs multiples of {_MULTIPLE}, got {shape}")
        if self._scales == "row":
            a_scale, b_scale = a_scale[:, None], b_scale[None, :]
        elif self._scales == "block128":
            a_scale, b_scale = a_scale.T, b_scale.T
        return torch._scaled_mm(
            a,
            b.T,
            scale_a=a_scale,
            scale_b=b_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=self._fast,
        )


def _dequantized(
    scales: str, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands as the numbers that they stand for."""
    if scales == "tensor":
        return a * a_scale, b * b_scale
    if scales == "row":
        return a * a_scale[:, None], b * b_scale[:, None]
    (n, k), blocks = b.shape, b_scale.repeat_interleave(GROUP, 0)
    blocks = blocks.repeat_interleave(GROUP, 1)
    return a * a_scale.T.repeat_interleave(GROUP, 1)[:, :k], b * blocks[:n, :k]
