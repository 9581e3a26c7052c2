"""The space of the residual addition with a norm: warps, rows per step, steps and stages."""

from __future__ import annotations

from search_spaces.block_sizes import next_power_of_two
from search_spaces.constraints import Constraint
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import fits_shared, integer, threads
from search_spaces.kernels.quantize.space import CONVERSIONS, convert_parameter, default_conversion
from search_spaces.kernels.rows import ROW_CONSTRAINTS, stage_parameters, step_parameters
from search_spaces.params import Boolean, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: The longest row: a program holds the sum, and the weight, of whole rows.
MAX_COLS = 16384
_LONGEST = 8
#: 32-bit registers of a multiprocessor, what a thread needs besides its elements, and the values of
#: each element: the sum and, for each column, the weight.
_REGISTERS, _OTHER_REGISTERS, _VALUES, _MOST_OF_THREAD = 65536, 24, 2, 64


def add_norm_space(workload: Workload, kernel: str) -> SearchSpace:
    """Steps of up to 4 rows, up to 8 steps a program, up to 3 stages in flight."""
    parameters = [
        PowerOfTwo("num_warps", 1, 32),
        *step_parameters(workload, tallest=4, longest=_LONGEST),
        Boolean("stream"),
        *stage_parameters(workload, longest=_LONGEST, deepest=3),
        *convert_parameter(workload, "to"),
    ]
    return SearchSpace(
        parameters, CONSTRAINTS, kernel=kernel, admits=("rows_per_step", "steps", "stages")
    )


def default_point(workload: Workload, device: Device) -> Config:
    """One program per row, by a thread for each 16 elements of usual rows."""
    warps = max(1, min(16, next_power_of_two(workload.size("cols")) // 512))
    usual = {"num_warps": warps, "rows_per_step": 1, "steps": 1, "stream": False}
    return {**usual, **default_conversion(workload, "to", device)}


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "rows_per_step") * next_power_of_two(workload.size("cols"))


def _fits_thread(config: Config, workload: Workload, device: Device) -> bool:
    lanes = threads(config, device)
    share = (_REGISTERS // lanes - _OTHER_REGISTERS) // _VALUES
    return _tile(config, workload) <= lanes * min(_MOST_OF_THREAD, share)


def _fits_in_flight(config: Config, workload: Workload, device: Device) -> bool:
    ahead = integer(config, "stages") - 1
    needed = 2 * ahead * _tile(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


CONSTRAINTS = (
    *ROW_CONSTRAINTS,
    Constraint("thread", _fits_thread, "a thread has too few registers for its elements"),
    Constraint("in_flight", _fits_in_flight, "rows in flight do not fit into shared memory"),
    *CONVERSIONS,
)
