"""The nearest center of every point and its squared distance, as in a step of k-means.

Bound by arithmetic for many centers: the matrix of distances is never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims, tolerance_of
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.limits import integer
from search_spaces.kernels.nearest_center.space import default_nearest, nearest_space
from search_spaces.kernels.nearest_center.triton_kernels import (
    nearest_center_kernel,
    nearest_of_splits_kernel,
)
from search_spaces.kernels.pairwise import (
    MOST_DIM,
    MOST_POINTS,
    MOST_ROWS,
    check_coordinates,
    norm_launch,
    tile_constants,
)
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.shape_tensor import torch_dtype
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, compiled, generator, random_tensor

if TYPE_CHECKING:
    import torch

#: Norms of centers and of the points' distances from them: |c|^2 is about 4 and |x - c|^2 about 1.
_CENTER_NORM, _NOISE_NORM = 2.0, 1.0
#: How much larger |x|^2 + |c|^2 is than |x - c|^2, and with it the relative rounding error.
_CANCELLATION = (2 * _CENTER_NORM**2 + _NOISE_NORM**2) / _NOISE_NORM**2
#: Roundings to float32 of each step of a sum; tensor cores truncate.
_ROUNDINGS = 4 * 2.0**-24
#: Scores the reference holds at a time, in float64.
_SCORES = 2**24
_COMBINED = 256
_RESULTS = ("index", "distance")


class NearestCenter(Kernel):
    """index[rows] and distance[rows] of the nearest of centers[centers, dim] to each of
    x[rows, dim]; dims rows, centers, dim, dtype and, optionally, tolerance (relative error).

    index is int64, distance the squared distance in float32. Points are drawn around centers far
    from each other: the nearest is closer than the next by more than products in TF32 are wrong.
    For float32, `precision` is how products are computed. TF32 finds the index; the distance is
    then computed again from the coordinates (`recompute`), unless the tolerance admits TF32.
    """

    name = "nearest_center"
    edges = (
        "zero",
        "equal",
        "tiny",
        "denormal",
    )
    dims = Dims(rows=MOST_POINTS, centers=MOST_ROWS, dim=MOST_DIM, dtype=DTYPES, tolerance=float)
    small = {"rows": 37, "centers": 71, "dim": 45}
    output = _RESULTS

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (1_500_000, 1024, 128, "float32"),
            (1_500_000, 1024, 128, "bfloat16"),
            (1_000_000, 4096, 128, "float32"),  # SIFT1M's inverted lists in Faiss
            (256_000, 500, 768, "float16"),  # HuBERT's units
            (65_536, 16384, 256, "bfloat16"),  # VQGAN's codebook, 256 images
            (24_000, 1024, 128, "float32"),  # EnCodec's codebook, 320 s of 24 kHz
            (256, 16384, 256, "bfloat16"),  # the same, one image
            (99_991, 257, 100, "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_coordinates(self.name, workload)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, centers, dim = workload.sizes("rows", "centers", "dim")
        dtype, source = workload.text("dtype"), generator(seed, device)
        shapes = {"x": (rows, dim), "centers": (centers, dim)}
        if device == "meta":
            specs = {name: workload.spec(*shape) for name, shape in shapes.items()}
            return {name: random_tensor(spec, None, device) for name, spec in specs.items()}
        scales = {"x": _NOISE_NORM / sqrt(dim), "centers": _CENTER_NORM / sqrt(dim)}
        drawn = {
            name: random_tensor(
                workload.spec(*shape, dtype="float32"), source, device, scale=scales[name]
            )
            for name, shape in shapes.items()
        }
        near = random_tensor(
            workload.spec(rows, dtype="int64"), source, device, limits=(0, centers)
        )
        drawn["x"] += drawn["centers"][near]
        return {name: tensor.to(torch_dtype(dtype)) for name, tensor in drawn.items()}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"),)
        return {
            "index": workload.spec(*shape, dtype="int64"),
            "distance": workload.spec(*shape, dtype="float32"),
        }

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        rows, centers, _ = workload.sizes("rows", "centers", "dim")
        splits = integer(config, "splits")
        found = {}
        if config["norms"] == "launch":
            found["norm"] = workload.spec(centers, dtype="float32")
        if splits > 1:
            found["value"] = workload.spec(splits, rows, dtype="float32")
            found["place"] = workload.spec(splits, rows, dtype="int32")
        return found

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        centers = inputs["centers"].double()
        norms = (centers * centers).sum(1)
        parts = []
        for part in torch.split(inputs["x"], max(1, _SCORES // centers.shape[0])):
            x = part.double()
            index = torch.addmm(norms, x, centers.T, alpha=-2).argmin(1)
            parts.append((index, ((x - centers[index]) ** 2).sum(1)))
        columns = (torch.cat(column) for column in zip(*parts, strict=True))
        return dict(zip(_RESULTS, columns, strict=True))

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding of sums over `dim` before they cancel."""
        rounding = _ROUNDINGS * _CANCELLATION * sqrt(workload.size("dim"))
        relative = tolerance_of(workload, max(ROUNDING["float32"], rounding))
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        rows, centers, dim = workload.sizes("rows", "centers", "dim")
        return 2.0 * rows * centers * dim

    def space(self, workload: Workload) -> SearchSpace:
        return nearest_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_nearest(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, centers, dim = workload.sizes("rows", "centers", "dim")
        splits, norms = integer(config, "splits"), tensors.get("norm")
        launches = [] if norms is None else [norm_launch(tensors["centers"], norms)]
        constants = {
            **tile_constants(config),
            "DIM": dim,
            "SPLITS": splits,
            "RECOMPUTE": config.get("recompute", False),
            "PAIRS": config["minimum"] == "pairs",
        }
        value, place = tensors.get("value"), tensors.get("place")
        results = tuple(tensors[name] for name in _RESULTS)
        arguments = (tensors["x"], tensors["centers"], norms, *results, value, place, rows, centers)
        grid = (ceil_div(rows, integer(config, "BLOCK_M")), splits)
        launches.append(Launch(nearest_center_kernel, grid, arguments, constants))
        if splits > 1:
            combined = {"SPLITS": splits, "BLOCK": _COMBINED, "num_warps": 4}
            partial = (value, place, *results, rows)
            groups = ceil_div(rows, _COMBINED)
            launches.append(Launch(nearest_of_splits_kernel, (groups,), partial, combined))
        return launches

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            # Distances in 16 bits could not tell centers apart.
            distance, index = torch.cdist(x.float(), centers.float()).min(1)
            return index, distance * distance

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        def product(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            x, centers = x.float(), centers.float()
            norms = (centers * centers).sum(1)
            least, index = torch.addmm(norms, x, centers.T, alpha=-2).min(1)
            return index, least + (x * x).sum(1)

        return {"product": product, "compile_product": compiled(product)}
