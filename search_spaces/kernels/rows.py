"""What families over the rows of a matrix share: dims, steps over rows, constraints, launches.

A program works on a step of `rows_per_step` whole rows at a time and takes `steps` of them, the
grid apart; from two steps on, `stages` of them are in flight through shared memory. A config with
`BLOCK` works on a block of one row at a time instead. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import alignment, ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernel import Kernel
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import MAX_THREADS, fits_shared, integer, threads
from search_spaces.params import Integer, Parameter, PowerOfTwo, When
from search_spaces.records import Config, Device, TensorSpec, Workload

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
#: float32 values a thread may hold of whole rows, and of a block with its running moments.
_MOST_OF_ROWS, _MOST_OF_BLOCK = 128, 32
_SMALL_ROWS, _SMALL_COLS = 13, 509


class RowKernel(Kernel):
    """A kernel of x[rows, cols] whose output `out` has the same shape and dtype."""

    def small_workload(self, workload: Workload) -> Workload:
        cols = workload.size("cols")
        odd = _SMALL_COLS if cols > _SMALL_COLS else max(cols - 1, 1) | 1
        return workload.with_dims(rows=_SMALL_ROWS, cols=odd)

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec("rows", "cols")}


# -- the space -------------------------------------------------------------------------------------
def step_parameters(
    workload: Workload, *, tallest: int, longest: int, when: When | None = None
) -> list[Parameter]:
    """rows_per_step up to `tallest` and steps up to `longest`, fewer where rows are few."""
    rows, block = workload.size("rows"), next_power_of_two(workload.size("cols"))
    fitting = min(tallest, max(8192 // block, 1), next_power_of_two(rows))
    return [
        PowerOfTwo("rows_per_step", 1, fitting, when=when),
        PowerOfTwo("steps", 1, _most_steps(workload, longest), when=when),
    ]


def stage_parameters(workload: Workload, *, longest: int, deepest: int) -> list[Parameter]:
    """stages up to `deepest` where a program takes several steps; none where it never does."""
    most = _most_steps(workload, longest)
    if most == 1:
        return []
    return [Integer("stages", 1, deepest, when={"steps": PowerOfTwo("steps", 2, most).values()})]


def _most_steps(workload: Workload, longest: int) -> int:
    return min(longest, next_power_of_two(workload.size("rows")))


def _tile(config: Config, workload: Workload) -> int:
    """Elements a program works on at a time."""
    if "BLOCK" in config:
        return integer(config, "BLOCK")
    return integer(config, "rows_per_step") * next_power_of_two(workload.size("cols"))


def _block_exists(config: Config, workload: Workload, device: Device) -> bool:
    return threads(config, device) <= MAX_THREADS


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    most = _MOST_OF_BLOCK if "BLOCK" in config else _MOST_OF_ROWS
    return _tile(config, workload) <= threads(config, device) * most


def _keeps_threads_busy(config: Config, workload: Workload, device: Device) -> bool:
    return config["num_warps"] == 1 or _tile(config, workload) >= 2 * threads(config, device)


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    steps = integer(config, "steps")
    groups = ceil_div(workload.size("rows"), integer(config, "rows_per_step"))
    return steps == 1 or ceil_div(groups, steps) >= min(groups, device.sm_count)


def _rows_fit_shared(config: Config, workload: Workload, device: Device) -> bool:
    in_flight = integer(config, "stages") - 1
    needed = in_flight * _tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return in_flight == 0 or fits_shared(needed, device)


ROW_CONSTRAINTS = (
    Constraint("block", _block_exists, "a block has at most 1024 threads"),
    Constraint("registers", _fits_registers, "a thread would hold too many elements"),
    Preference("busy", _keeps_threads_busy, "threads would hold fewer than two elements"),
    Preference("fill", _fills_device, "programs would be fewer than multiprocessors"),
    Constraint("shared", _rows_fit_shared, "the rows in flight do not fit into shared memory"),
)


# -- the launch ------------------------------------------------------------------------------------
def row_constants(x: torch.Tensor, out: torch.Tensor, config: Config) -> dict[str, Any]:
    """Constants of every launch over rows; x and out are [rows, cols] with a column stride of 1."""
    return {
        "COLS": x.shape[1],
        "ALIGN": min(alignment(x.stride(0)), alignment(out.stride(0))),
        "STREAM": config["stream"],
        "num_warps": config["num_warps"],
    }


def step_constants(workload: Workload, config: Config) -> dict[str, Any]:
    """Constants of a launch that works on whole rows."""
    per_step = integer(config, "rows_per_step")
    return {
        "BLOCK": next_power_of_two(workload.size("cols")),
        "ROWS_PER_STEP": per_step,
        "EVEN_ROWS": workload.size("rows") % per_step == 0,
        "LOOP": integer(config, "steps") > 1,
        "LOAD_STAGES": config.get("stages", 1),
    }


def step_grid(workload: Workload, config: Config) -> tuple[int]:
    """The grid of a launch that works on whole rows."""
    groups = ceil_div(workload.size("rows"), integer(config, "rows_per_step"))
    return (ceil_div(groups, integer(config, "steps")),)
