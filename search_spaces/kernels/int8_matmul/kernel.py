"""Matrix product of int8 codes with a scale for each row of both operands, to bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.codes import random_codes, random_scales
from search_spaces.kernels.limits import LARGEST_SIDE
from search_spaces.kernels.scaled_tiles import (
    default_point,
    partial_specs,
    scaled_launches,
    scaled_space,
    takes_descriptors,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, generator, named

if TYPE_CHECKING:
    import torch

#: Beyond this K, a sum of products of -128 does not fit into 32 bits.
_LONGEST = 2**31 // 128**2 - 1
#: torch._int_mm takes more rows of a than this, and N and K in multiples of this.
_FEWEST, _MULTIPLE = 16, 8


class Int8Matmul(Kernel):
    """out[M, N] of codes a[M, K] and b[N, K] with scales a_scale[M] and b_scale[N]; dims M, N, K
    and dtype.

    dtype: int8, of both operands, whose products are summed exactly; the output is bfloat16.
    """

    name = "int8_matmul"
    edges = SPECIAL_EDGES
    dims = Dims(M=LARGEST_SIDE, N=LARGEST_SIDE, K=_LONGEST, dtype=("int8",))

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (4096, 6144, 4096, "int8"),  # Llama-3 8B, queries, keys and values
            (4096, 28672, 4096, "int8"),  # Llama-3 8B, gate and up
            (4096, 4096, 14336, "int8"),  # Llama-3 8B, down
            (8192, 8192, 8192, "int8"),  # Llama-3 70B, output of attention
            (16, 57344, 8192, "int8"),  # Llama-3 70B, gate and up, decoding
            (64, 8192, 28672, "int8"),  # Llama-3 70B, down, decoding
            (2048, 5120, 8192, "int8"),  # Qwen3 32B, output of attention
            (1, 24576, 4096, "int8"),  # Qwen3 8B, gate and up, one token
            (1000, 1003, 997, "int8"),
        )

    def small_workload(self, workload: Workload) -> Workload:
        # Descriptors need rows of whole 16 bytes, so where the workload has them, keep them.
        depth = 208 if takes_descriptors(workload) else 203
        return workload.with_dims(M=min(37, workload.size("M")), N=137, K=depth)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        m, n, k = workload.sizes("M", "N", "K")
        source = generator(seed, device)
        return {
            "a": random_codes((m, k), "int8", source, device),
            "b": random_codes((n, k), "int8", source, device),
            "a_scale": random_scales((m,), "int8", source, device),
            # Outputs are of the order of one, whatever K.
            "b_scale": random_scales((n,), "int8", source, device, 1 / sqrt(k)),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        m, n, _ = workload.sizes("M", "N", "K")
        return {"out": workload.spec(m, n, dtype="bfloat16")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        return partial_specs(workload, config)

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        a, b, a_scale, b_scale = (
            inputs[name].double() for name in ("a", "b", "a_scale", "b_scale")
        )
        return {"out": (a @ b.T) * a_scale[:, None] * b_scale[None, :]}

    def flops(self, workload: Workload) -> float:
        m, n, k = workload.sizes("M", "N", "K")
        return 2.0 * m * n * k

    def space(self, workload: Workload) -> SearchSpace:
        return scaled_space(workload, self.name, "row")

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        return scaled_launches(workload, config, tensors, "row")

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(
            a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
        ) -> torch.Tensor:
            wide_a = (a * a_scale[:, None]).bfloat16()
            return wide_a @ (b * b_scale[:, None]).bfloat16().T

        inputs = ("a", "b", "a_scale", "b_scale")
        return {
            "eager": named("out", eager, *inputs),
            "compile": named(
                "out", compiled(_scaled_int_mm if _takes(workload) else eager), *inputs
            ),
            "vendor": named("out", _int_mm, *inputs),
        }


def _scaled_int_mm(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    import torch

    sums = torch._int_mm(a, b.T)
    return (sums * a_scale[:, None] * b_scale[None, :]).bfloat16()


def _int_mm(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    """cuBLASLt by `torch._int_mm`, and scales by torch."""
    if a.device.type != "cuda":
        raise RuntimeError(f"cuBLASLt needs CUDA tensors, got one on {a.device.type}")
    if a.shape[0] <= _FEWEST or any(size % _MULTIPLE for size in b.shape):
        raise RuntimeError(
            f"torch._int_mm needs M above {_FEWEST}, N and K in multiples of {_MULTIPLE}, "
            f"got M={a.shape[0]}, N={b.shape[0]}, K={b.shape[1]}"
        )
    return _scaled_int_mm(a, b, a_scale, b_scale)


def _takes(workload: Workload) -> bool:
    """Whether `torch._int_mm` takes the sizes on a GPU."""
    m, n, k = workload.sizes("M", "N", "K")
    return m > _FEWEST and n % _MULTIPLE == k % _MULTIPLE == 0
