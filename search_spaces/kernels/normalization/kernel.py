"""Normalisation of rows in Triton: LayerNorm and RMSNorm.

Memory-bound: the least traffic is one read and one write of the matrix. A variant that reads a row
twice gets it from a cache the second time, if the row fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.dims import Dims, number_of
from search_spaces.edges import NORM_EDGES
from search_spaces.kernel import Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import LARGEST_SIDE
from search_spaces.kernels.normalization.space import default_point, norm_space
from search_spaces.kernels.normalization.triton_kernels import (
    held_norm_kernel,
    streamed_norm_kernel,
)
from search_spaces.kernels.rows import RowKernel, row_constants, step_constants, step_grid
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

DEFAULT_EPS = 1e-5


class LayerNorm(RowKernel):
    """(x - mean) / sqrt(var + eps) * weight + bias over the rows of x[rows, cols].

    Dims rows, cols (at most 2**20), dtype and, optionally, eps (1e-5). All tensors have the dtype;
    weight and bias are vectors of cols.
    """

    name = "layer_norm"
    edges = NORM_EDGES
    dims = Dims(rows=LARGEST_SIDE, cols=2**20, dtype=DTYPES, eps=float)
    elementwise = 2
    #: Whether the mean is subtracted and a bias added.
    centred: ClassVar[bool] = True

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (8192, 4096, "bfloat16"),
            (8192, 1024, "bfloat16"),
            (16384, 768, "float16"),
            (4096, 16384, "bfloat16"),
            (8192, 5120, "float32"),
            (65536, 250, "bfloat16"),
            (512, 100003, "bfloat16"),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        found = {
            # Not centred at zero, so that a variant without the subtraction of the mean fails.
            "x": workload.spec("rows", "cols", mean=1.0, scale=2.0),
            "weight": workload.spec("cols", mean=1.0, scale=0.25),
        }
        return {**found, "bias": workload.spec("cols")} if self.centred else found

    def flops(self, workload: Workload) -> float:
        rows, cols = workload.sizes("rows", "cols")
        return (7.0 if self.centred else 4.0) * rows * cols

    def space(self, workload: Workload) -> SearchSpace:
        return norm_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        x, out, weight = tensors["x"], tensors["out"], tensors["weight"]
        bias = tensors["bias"] if self.centred else weight
        rows, strides = workload.size("rows"), (x.stride(0), out.stride(0))
        constants = {
            **row_constants(x, out, config),
            "CENTRED": self.centred,
            "EPS": _eps(workload),
        }
        if config["passes"] == 2:
            streamed = {"BLOCK": config["BLOCK"], "LOAD_STAGES": config["block_stages"]}
            arguments = (x, weight, bias, out, *strides)
            return [Launch(streamed_norm_kernel, (rows,), arguments, {**constants, **streamed})]
        held = {**constants, **step_constants(workload, config)}
        grid = step_grid(workload, config)
        return [Launch(held_norm_kernel, grid, (x, weight, bias, out, rows, *strides), held)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        shape, eps = [workload.size("cols")], _eps(workload)

        def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)

        return layer_norm


class RmsNorm(LayerNorm):
    """x / sqrt(mean(x**2) + eps) * weight: LayerNorm without mean and bias; the same dims."""

    name = "rms_norm"
    edges = NORM_EDGES
    centred = False

    def eager(self, workload: Workload) -> Callable[..., Any]:
        shape, eps = [workload.size("cols")], _eps(workload)

        def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.rms_norm(x, shape, weight, eps)

        return rms_norm


def _eps(workload: Workload) -> float:
    return number_of(workload, "eps", DEFAULT_EPS)
