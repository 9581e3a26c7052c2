"""What families of distances between rows of two matrices share: tiles, norms, constraints.

|x - y|^2 = |x|^2 + |y|^2 - 2 x.y, so that tensor cores compute the products of a tile of
[BLOCK_M, BLOCK_N] pairs, BLOCK_K coordinates at a time. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Launch
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import block_parameter, has_capability, integer, nearest, threads
from search_spaces.kernels.pairwise_triton import squared_norms_kernel
from search_spaces.params import Choice, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Value, Workload

if TYPE_CHECKING:
    import torch

#: Coordinates: tensor cores multiply at least 16. Offsets into 2**17 rows of 2**13 fit 32 bits.
LEAST_DIM, MOST_DIM, MOST_ROWS = 16, 2**13, 2**17
#: Points, so that the end of the last tile still fits 32 bits.
MOST_POINTS = 2**30
#: Rows that a program of the norms takes, and coordinates at a time.
_NORM_ROWS, _NORM_COORDINATES = 16, 128
#: Sums of a thread at most: of products of one part, of TF32 in three, and without tensor cores.
_MOST_SUMS = {"tf32x3": 64, "ieee": 64}
_MOST_SUMS_ELSE = 128
#: Multiplications in the code of a thread without tensor cores.
_MOST_MULTIPLICATIONS = 2048


def check_coordinates(kernel: str, workload: Workload) -> None:
    """Raise `WorkloadError` where points have fewer coordinates than tensor cores multiply."""
    dim = workload.size("dim")
    if dim < LEAST_DIM:
        raise WorkloadError(
            f"{kernel} [{workload.key}]: dim is {dim}, fewer than {LEAST_DIM} coordinates",
            f"append columns of zeros up to {LEAST_DIM}, which change no distance",
        )


def tile_parameters(workload: Workload, rows: int, cols: int, *, deepest: int) -> list[Parameter]:
    """Tiles, warps, norms and, for float32, precision; BLOCK_K is at most `deepest`."""
    single = workload["dtype"] == "float32"
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", rows, 64, 256),
        block_parameter("BLOCK_N", cols, 64, 256),
        block_parameter("BLOCK_K", workload.size("dim"), 32, deepest),
        PowerOfTwo("num_warps", 4, 8),
        Choice("norms", ("launch", "kernel")),
    ]
    if single:
        parameters.append(Choice("precision", ("tf32x3", "tf32", "ieee")))
    return parameters


def default_point(
    bound: BoundSpace,
    usual: Sequence[Mapping[str, Value]],
    precisions: Sequence[str] = ("tf32x3", "ieee"),
) -> Config:
    """The config without tuning: the first feasible of usual configs, cut to the problem.

    precisions: those of float32, the first feasible one.
    """
    single = bound.workload["dtype"] == "float32"
    for tile in usual:
        for precision in precisions if single else (None,):
            config: dict[str, Value] = {
                item.name: _usual_value(item, tile[item.name])
                for item in bound.parameters
                if item.name in tile
            }
            if precision is not None:
                config["precision"] = precision
            complete = bound.complete(config)
            if bound.feasible(complete):
                return complete
    bound.require_feasible()
    return next(bound.enumerate())


def _usual_value(parameter: Parameter, usual: Value) -> Value:
    """The value itself, or the nearest number that the parameter has."""
    number = isinstance(usual, int) and not isinstance(usual, bool)
    return nearest(parameter, int(str(usual))) if number else usual


# -- constraints -----------------------------------------------------------------------------------
def steps(config: Config, workload: Workload) -> int:
    """Steps over the coordinates."""
    return ceil_div(workload.size("dim"), integer(config, "BLOCK_K"))


def tile_bytes(config: Config, workload: Workload, sides: int) -> int:
    """Shared memory of tiles that have `sides` rows together.

    tf32x3 has more tiles of the right operand, which are its parts.
    """
    parts = 0 if config.get("precision") != "tf32x3" else 3 if steps(config, workload) == 1 else 1
    sides += parts * integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def sums(config: Config, workload: Workload) -> int:
    """Sums of a tile."""
    return integer(config, "BLOCK_M") * integer(config, "BLOCK_N")


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    most = _MOST_SUMS.get(f"{config.get('precision')}", _MOST_SUMS_ELSE)
    return sums(config, workload) <= most * threads(config, device)


def _code_is_short(config: Config, workload: Workload, device: Device) -> bool:
    if config.get("precision") != "ieee":
        return True
    multiplications = sums(config, workload) * integer(config, "BLOCK_K")
    return multiplications <= _MOST_MULTIPLICATIONS * threads(config, device)


def _has_tensor_floats(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("precision", "ieee") == "ieee" or has_capability(device, 80)


def _keeps_its_tiles(config: Config, workload: Workload, device: Device) -> bool:
    """Tiles in flight serve the product alone: norms of them would need `num_stages` 1.

    Observed on an H200 with Triton 3.6: 6 of about 60 configs with norms summed from the tiles of
    two stages or more were wrong now and then, 12 of 268 million elements in one of them. Read in
    the code of Triton 3.7 for cuda:90: a tile that the product alone reads has `num_stages` buffers
    in shared memory, one more than are being loaded, since the product of a step
    (`warp_group_dot`, asynchronous) is waited for one step later (`pendings = 1`). A tile that is
    also loaded into registers has `num_stages` - 1, the product is waited for one step later all
    the same, and the next `async_copy_global_to_local` overwrites the buffer that it may be
    reading. The product of a single step is waited for at once, but nothing says that it must be.
    """
    return config["norms"] == "launch" or integer(config, "num_stages") == 1


TILE_CONSTRAINTS = (
    Constraint("registers", _fits_registers, "a thread would hold too many sums"),
    Constraint("code", _code_is_short, "a thread's code would have too many multiplications"),
    Constraint("tensor_floats", _has_tensor_floats, "TF32 needs cuda:80 or newer"),
    Constraint(
        "overwritten",
        _keeps_its_tiles,
        "Triton overwrites tiles in flight that norms and an asynchronous product both read "
        "(wrong results on cuda:90 with Triton 3.6)",
    ),
)


# -- launches --------------------------------------------------------------------------------------
def norm_launch(x: torch.Tensor, norms: torch.Tensor) -> Launch:
    """The launch that writes the squared norms of the rows of x."""
    rows, dim = x.shape
    constants = {
        "DIM": dim,
        "BLOCK_R": _NORM_ROWS,
        "BLOCK_K": min(_NORM_COORDINATES, next_power_of_two(dim)),
        "num_warps": 4,
    }
    return Launch(squared_norms_kernel, (ceil_div(rows, _NORM_ROWS),), (x, norms, rows), constants)


def tile_constants(config: Config) -> dict[str, Value]:
    """Constants of every launch over tiles of pairs."""
    names: Sequence[str] = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    return {
        **{name: config[name] for name in names},
        "GIVEN": config["norms"] == "launch",
        "PRECISION": config.get("precision", "ieee"),
    }
