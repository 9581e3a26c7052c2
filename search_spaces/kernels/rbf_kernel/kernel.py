"""Rows of the radial basis function (Gaussian) kernel of two sets of points, in one pass.

Bound by the writes of the output for few coordinates: distances are never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e as euler
from math import log2, sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims, number_of
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import integer
from search_spaces.kernels.pairwise import (
    MOST_DIM,
    MOST_POINTS,
    check_coordinates,
    default_point,
    norm_launch,
    tile_constants,
)
from search_spaces.kernels.rbf_kernel.space import USUAL, rbf_space
from search_spaces.kernels.rbf_kernel.triton_kernels import rbf_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, named

if TYPE_CHECKING:
    import torch

#: Operations of a pair besides its product: distance and exponential.
_FLOPS = 6.0


class RbfKernel(Kernel):
    """out[rows, cols] = exp(-gamma |x - y|^2) of the rows of x[rows, dim] and y[cols, dim]; dims
    rows, cols, dim, dtype and, optionally, gamma and tolerance (relative error).

    gamma is 1 / dim where it is not given, as in scikit-learn. For float32, `precision` is how
    products are computed; the tolerance decides whether TF32 is admissible.
    """

    name = "rbf_kernel"
    edges = SPECIAL_EDGES
    dims = Dims(
        rows=MOST_POINTS, cols=MOST_POINTS, dim=MOST_DIM, dtype=DTYPES, gamma=float, tolerance=float
    )
    small = {"rows": 37, "cols": 71, "dim": 45}

    def workloads(self) -> Sequence[Workload]:
        workloads = self.dims.workloads(
            (16384, 16384, 128, "bfloat16"),
            (60000, 4096, 784, "float32"),  # MNIST, 4,096 Nystroem landmarks
            (8192, 8192, 512, "float16"),  # CLIP ViT-B/32's embeddings
            (4096, 100000, 64, "bfloat16"),  # DLRM's embeddings, dim 64
            (50000, 512, 2048, "float16"),  # ResNet-50's features, 512 landmarks
            (45730, 1024, 16, "float32"),  # UCI protein, padded; 1,024 inducing points
            (9973, 1031, 90, "float32"),  # UCI year: 90 coordinates
        )
        return [*workloads, workloads[1].with_dims(tolerance=1e-3)]

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_coordinates(self.name, workload)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # Scaled so that gamma |x - y|^2 is about two, whatever gamma.
        scale = 1 / sqrt(_gamma(workload) * workload.size("dim"))
        return {
            name: workload.spec(points, "dim", scale=scale)
            for name, points in (("x", "rows"), ("y", "cols"))
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        if config["norms"] != "launch":
            return {}
        sizes = {"x_norm": workload.size("rows"), "y_norm": workload.size("cols")}
        return {name: workload.spec(points, dtype="float32") for name, points in sizes.items()}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": _similarity(inputs["x"].double(), inputs["y"].double(), _gamma(workload))}

    def flops(self, workload: Workload) -> float:
        rows, cols, dim = workload.sizes("rows", "cols", "dim")
        return rows * cols * (2.0 * dim + _FLOPS)

    def space(self, workload: Workload) -> SearchSpace:
        return rbf_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device), USUAL)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, cols, dim = workload.sizes("rows", "cols", "dim")
        names = ("x_norm", "y_norm") if config["norms"] == "launch" else ()
        launches = [norm_launch(tensors[name[0]], tensors[name]) for name in names]
        block_m, block_n = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
        constants = {
            **tile_constants(config),
            "COLS": cols,
            "DIM": dim,
            "GROUP_M": config["GROUP_M"],
            "EVEN": rows % block_m == 0 and cols % block_n == 0,
            "STREAM": config["stream"],
        }
        norms = tensors.get("x_norm"), tensors.get("y_norm")
        scale = -_gamma(workload) * log2(euler)
        arguments = (tensors["x"], tensors["y"], *norms, tensors["out"], rows, scale)
        grid = (ceil_div(rows, block_m) * ceil_div(cols, block_n),)
        return [*launches, Launch(rbf_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        gamma = _gamma(workload)

        def eager(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            import torch

            # Distances in 16 bits would make the exponential inexact.
            return torch.cdist(x.float(), y.float()).square_().mul_(-gamma).exp_().to(x.dtype)

        def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return _similarity(x.float(), y.float(), gamma).to(x.dtype)

        return {
            "eager": named("out", eager, "x", "y"),
            "compile": named("out", compiled(product), "x", "y"),
            "product": named("out", product, "x", "y"),
        }


def _gamma(workload: Workload) -> float:
    return number_of(workload, "gamma", 1 / workload.size("dim"))


def _similarity(x: torch.Tensor, y: torch.Tensor, gamma: float) -> torch.Tensor:
    """By the product of both matrices, as users of torch write it who avoid `cdist`."""
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1)
    return (-gamma * (squares - 2 * (x @ y.T)).clamp_min(0)).exp()
