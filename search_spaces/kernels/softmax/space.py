"""The space of the softmax family: warps, rows per step, steps and stages of a program."""

from __future__ import annotations

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernels.rows import ROW_CONSTRAINTS, stage_parameters, step_parameters
from search_spaces.params import Boolean, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

_LONGEST = 16


def softmax_space(workload: Workload) -> SearchSpace:
    """Steps of up to 8 rows, up to 16 steps a program, up to 4 stages in flight."""
    parameters = [
        PowerOfTwo("num_warps", 1, 32),
        *step_parameters(workload, tallest=8, longest=_LONGEST),
        Boolean("stream"),
        *stage_parameters(workload, longest=_LONGEST, deepest=4),
    ]
    return SearchSpace(
        parameters, ROW_CONSTRAINTS, kernel="softmax", admits=("rows_per_step", "steps", "stages")
    )


def default_point(workload: Workload, device: Device) -> Config:
    """One program per row, warps by the size of the row, as in Triton's own tutorial."""
    block = next_power_of_two(workload.size("cols"))
    usual = 4 if block < 2048 else 8 if block < 4096 else 16
    busy = max(block // (2 * (device.warp_size or 32)), 1)
    return {"num_warps": min(usual, busy), "rows_per_step": 1, "steps": 1, "stream": False}
