"""What families of independent elements share: blocks of elements, constraints, the grid.

A program works on a block of `BLOCK` elements at a time and takes `steps` of them, the grid apart.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.limits import BLOCK_EXISTS, MAX_SIZE, fits_registers, integer, threads
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Elements of the smallest and the largest block.
_SMALLEST, _LARGEST = 128, 16384
_MOST_STEPS = 8
#: A thread holds at most this many elements of each tensor, and at least half a word of 16 bytes.
_MOST_HELD, _WORD_BYTES = 64, 16
#: The block of the usual config, as in Triton's own tutorial.
_USUAL_BLOCK, _USUAL_WARPS = 1024, 4


def element_space(elements: int, kernel: str) -> SearchSpace:
    """Blocks, warps, steps of a program and whether lines leave the caches first.

    elements: of the output; where a block is a part of a row, of a row.
    """
    largest = max(_SMALLEST, min(_LARGEST, next_power_of_two(elements)))
    parameters: list[Parameter] = [
        PowerOfTwo("BLOCK", _SMALLEST, largest),
        PowerOfTwo("num_warps", 1, 16),
        PowerOfTwo("steps", 1, _MOST_STEPS),
        Boolean("stream"),
    ]
    return SearchSpace(parameters, CONSTRAINTS, kernel=kernel, admits=("BLOCK",))


def default_point(elements: int) -> Config:
    """1,024 elements by 4 warps, as in Triton's own tutorial; fewer where there are fewer."""
    block = max(_SMALLEST, min(_USUAL_BLOCK, next_power_of_two(elements)))
    warps = max(1, _USUAL_WARPS * block // _USUAL_BLOCK)
    return {"BLOCK": block, "num_warps": warps, "steps": 1, "stream": False}


def element_grid(elements: int, config: Config) -> int:
    """Programs that `elements` need."""
    return ceil_div(ceil_div(elements, integer(config, "BLOCK")), integer(config, "steps"))


def element_constants(elements: int, config: Config) -> Mapping[str, Any]:
    """Constants of every launch over elements."""
    return {
        "BLOCK": config["BLOCK"],
        "EVEN": elements % integer(config, "BLOCK") == 0,
        "LOOP": integer(config, "steps") > 1,
        "STREAM": config["stream"],
        "num_warps": config["num_warps"],
    }


def counts_wide(elements: int, block: int) -> bool:
    """Whether the sum of which `cdiv` takes the quotient, elements + block, exceeds 32 bits."""
    return elements > MAX_SIZE - block


def _block(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK")


def _fills_words(config: Config, workload: Workload, device: Device) -> bool:
    half_a_word = _WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")] // 2
    enough = integer(config, "BLOCK") >= threads(config, device) * half_a_word
    return config["num_warps"] == 1 or enough


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    if integer(config, "steps") == 1:
        return True
    elements = workload.size("rows") * workload.size("cols")
    return element_grid(elements, config) >= device.sm_count


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_block, _MOST_HELD),
    Preference("words", _fills_words, "threads would load less than half a word of 16 bytes"),
    Preference("fill", _fills_device, "programs would be fewer than multiprocessors"),
)
