"""The nearest centre of every point and its squared distance, as in a step of k-means.

Bound by arithmetic for many centres: the matrix of distances is never in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div
from search_spaces.declaration.dimensions import check_dims, tolerance_of
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import integer
from search_spaces.kernels.nearest_centre.space import default_nearest, nearest_space
from search_spaces.kernels.nearest_centre.triton_kernels import (
    nearest_centre_kernel,
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
from search_spaces.records import Config, Device, Workload
from search_spaces.shape_tensor import torch_dtype
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

#: Norms of centres and of the points' distances from them: |c|^2 is about 4 and |x - c|^2 about 1.
_CENTRE_NORM, _NOISE_NORM = 2.0, 1.0
#: How much larger |x|^2 + |c|^2 is than |x - c|^2, and with it the relative rounding error.
_CANCELLATION = (2 * _CENTRE_NORM**2 + _NOISE_NORM**2) / _NOISE_NORM**2
#: Roundings to float32 of each step of a sum; tensor cores truncate.
_ROUNDINGS = 4 * 2.0**-24
_RESULT_BYTES = 8 + 4
#: Scores the reference holds at a time, in float64.
_SCORES = 2**24
_COMBINED = 256
_RESULTS = ("index", "distance")


class NearestCentre(Kernel):
    """index[rows] and distance[rows] of the nearest of centres[centres, dim] to each of
    x[rows, dim]; dims rows, centres, dim, dtype and, optionally, tolerance (relative error).

    index is int64, distance the squared distance in float32. Points are drawn around centres far
    from each other: the nearest is closer than the next by more than products in TF32 are wrong.
    For float32, `precision` is how products are computed. TF32 finds the index; the distance is
    then computed again from the coordinates (`recompute`), unless the tolerance admits TF32.
    """

    name = "nearest_centre"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(1_500_000, 1024, 128, "float32"),
            _workload(1_500_000, 1024, 128, "bfloat16"),
            _workload(1_000_000, 4096, 128, "float32"),  # SIFT1M's inverted lists in Faiss
            _workload(256_000, 500, 768, "float16"),  # HuBERT's units
            _workload(65_536, 16384, 256, "bfloat16"),  # VQGAN's codebook, 256 images
            _workload(24_000, 1024, 128, "float32"),  # EnCodec's codebook, 320 s of 24 kHz
            _workload(256, 16384, 256, "bfloat16"),  # the same, one image
            _workload(99_991, 257, 100, "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        sizes = {"rows": MOST_POINTS, "centres": MOST_ROWS, "dim": MOST_DIM}
        check_dims(self.name, workload, sizes=sizes, dtypes=DTYPES, optional=("tolerance",))
        check_coordinates(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        return workload.with_dims(rows=37, centres=71, dim=45)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        rows, centres, dim = _sizes(workload)
        dtype, source = workload.text("dtype"), generator(seed, device)
        shapes = {"x": (rows, dim), "centres": (centres, dim)}
        if device == "meta":
            specs = {name: TensorSpec(shape, dtype) for name, shape in shapes.items()}
            return {name: random_tensor(spec, None, device) for name, spec in specs.items()}
        scales = {"x": _NOISE_NORM / sqrt(dim), "centres": _CENTRE_NORM / sqrt(dim)}
        drawn = {
            name: random_tensor(TensorSpec(shape, "float32"), source, device, scale=scales[name])
            for name, shape in shapes.items()
        }
        near = random_tensor(TensorSpec((rows,), "int64"), source, device, limits=(0, centres))
        drawn["x"] += drawn["centres"][near]
        return {name: tensor.to(torch_dtype(dtype)) for name, tensor in drawn.items()}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = (workload.size("rows"),)
        return {"index": TensorSpec(shape, "int64"), "distance": TensorSpec(shape, "float32")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        rows, centres, _ = _sizes(workload)
        splits = integer(config, "splits")
        found = {}
        if config["norms"] == "launch":
            found["norm"] = TensorSpec((centres,), "float32")
        if splits > 1:
            found["value"] = TensorSpec((splits, rows), "float32")
            found["place"] = TensorSpec((splits, rows), "int32")
        return found

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        import torch

        centres = inputs["centres"].double()
        norms = (centres * centres).sum(1)
        parts = []
        for part in torch.split(inputs["x"], max(1, _SCORES // centres.shape[0])):
            x = part.double()
            index = torch.addmm(norms, x, centres.T, alpha=-2).argmin(1)
            parts.append((index, ((x - centres[index]) ** 2).sum(1)))
        columns = (torch.cat(column) for column in zip(*parts, strict=True))
        return dict(zip(_RESULTS, columns, strict=True))

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding of sums over `dim` before they cancel."""
        rounding = _ROUNDINGS * _CANCELLATION * sqrt(workload.size("dim"))
        relative = tolerance_of(workload, max(ROUNDING["float32"], rounding))
        return Tolerance(relative, 8 * relative)

    def cost(self, workload: Workload) -> Cost:
        rows, centres, dim = _sizes(workload)
        read = (rows + centres) * dim * ELEMENT_BYTES[workload.text("dtype")]
        return Cost(flops=2.0 * rows * centres * dim, bytes=float(read + rows * _RESULT_BYTES))

    def space(self, workload: Workload) -> SearchSpace:
        return nearest_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_nearest(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        rows, centres, dim = _sizes(workload)
        splits, norms = integer(config, "splits"), tensors.get("norm")
        launches = [] if norms is None else [norm_launch(tensors["centres"], norms)]
        constants = {
            **tile_constants(config),
            "DIM": dim,
            "SPLITS": splits,
            "RECOMPUTE": config.get("recompute", False),
            "PAIRS": config["minimum"] == "pairs",
        }
        value, place = tensors.get("value"), tensors.get("place")
        results = tuple(tensors[name] for name in _RESULTS)
        arguments = (tensors["x"], tensors["centres"], norms, *results, value, place, rows, centres)
        grid = (ceil_div(rows, integer(config, "BLOCK_M")), splits)
        launches.append(Launch(nearest_centre_kernel, grid, arguments, constants))
        if splits > 1:
            combined = {"SPLITS": splits, "BLOCK": _COMBINED, "num_warps": 4}
            partial = (value, place, *results, rows)
            groups = ceil_div(rows, _COMBINED)
            launches.append(Launch(nearest_of_splits_kernel, (groups,), partial, combined))
        return launches

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            # Distances in 16 bits could not tell centres apart.
            distance, index = torch.cdist(x.float(), centres.float()).min(1)
            return index, distance * distance

        def product(x: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            import torch

            x, centres = x.float(), centres.float()
            norms = (centres * centres).sum(1)
            least, index = torch.addmm(norms, x, centres.T, alpha=-2).min(1)
            return index, least + (x * x).sum(1)

        functions = {
            "eager": eager,
            "compile": compiled(eager),
            "product": product,
            "compile_product": compiled(product),
        }
        inputs = ("x", "centres")
        return {name: named(_RESULTS, function, *inputs) for name, function in functions.items()}


def _workload(rows: int, centres: int, dim: int, dtype: str) -> Workload:
    return Workload.of(rows=rows, centres=centres, dim=dim, dtype=dtype)


def _sizes(workload: Workload) -> tuple[int, int, int]:
    return workload.size("rows"), workload.size("centres"), workload.size("dim")
