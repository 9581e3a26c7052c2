"""Normalisation of rows in Triton: LayerNorm and RMSNorm.

Memory-bound: the least traffic is one read and one write of the matrix. A variant that reads a row
twice gets it from a cache the second time, if the row fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from search_spaces.declaration.dimensions import number_of
from search_spaces.kernel import Cost, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.normalisation.space import default_point, norm_space
from search_spaces.kernels.normalisation.triton_kernels import (
    held_norm_kernel,
    streamed_norm_kernel,
)
from search_spaces.kernels.rows import (
    RowKernel,
    row_constants,
    step_constants,
    step_grid,
    workloads,
)
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

DEFAULT_EPS = 1e-5


class LayerNorm(RowKernel):
    """(x - mean) / sqrt(var + eps) * weight + bias over the rows of x[rows, cols].

    Dims rows, cols (at most 2**20), dtype and, optionally, eps (1e-5). All tensors have the dtype;
    weight and bias are vectors of cols.
    """

    name = "layer_norm"
    max_cols = 2**20
    optional_dims = ("eps",)
    #: Whether the mean is subtracted and a bias added.
    centred: ClassVar[bool] = True

    def workloads(self) -> Sequence[Workload]:
        return workloads(
            (8192, 4096, "bfloat16"),
            (8192, 1024, "bfloat16"),
            (16384, 768, "float16"),
            (4096, 16384, "bfloat16"),
            (8192, 5120, "float32"),
            (65536, 250, "bfloat16"),
            (512, 100003, "bfloat16"),
        )

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, cols = workload.size("rows"), workload.size("cols")
        dtype, source = workload.text("dtype"), generator(seed, device)
        vector = TensorSpec((cols,), dtype)
        inputs = {
            # Not centred at zero, so that a variant without the subtraction of the mean fails.
            "x": random_tensor(TensorSpec((rows, cols), dtype), source, device, scale=2.0).add_(1),
            "weight": random_tensor(vector, source, device, scale=0.25).add_(1),
        }
        if self.centred:
            inputs["bias"] = random_tensor(vector, source, device)
        return inputs

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        exact = [tensor.double() for tensor in inputs.values()]
        return {"out": self._torch(workload)(*exact)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        # The rounding error of one element may be twice that of the whole output.
        return Tolerance(relative, 2 * relative)

    def cost(self, workload: Workload) -> Cost:
        rows, cols = workload.size("rows"), workload.size("cols")
        vectors = 2 if self.centred else 1
        moved = (2.0 * rows + vectors) * cols * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=(7.0 if self.centred else 4.0) * rows * cols, bytes=moved)

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

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        eager = self._torch(workload)
        names = ("x", "weight", "bias") if self.centred else ("x", "weight")
        return {
            "eager": named("out", eager, *names),
            "compile": named("out", compiled(eager), *names),
        }

    def _torch(self, workload: Workload) -> Callable[..., torch.Tensor]:
        shape, eps = [workload.size("cols")], _eps(workload)

        def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)

        return layer_norm


class RmsNorm(LayerNorm):
    """x / sqrt(mean(x**2) + eps) * weight: LayerNorm without mean and bias; the same dims."""

    name = "rms_norm"
    centred = False

    def _torch(self, workload: Workload) -> Callable[..., torch.Tensor]:
        shape, eps = [workload.size("cols")], _eps(workload)

        def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            import torch

            return torch.nn.functional.rms_norm(x, shape, weight, eps)

        return rms_norm


def _eps(workload: Workload) -> float:
    return number_of(workload, "eps", DEFAULT_EPS)
