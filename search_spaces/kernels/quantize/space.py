"""Spaces and launches of kernels that find the largest magnitude of groups, and quantize by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.constraints import Constraint, Preference
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Launch
from search_spaces.kernels.codes import FLOAT8
from search_spaces.kernels.elements import counts_wide
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    MAX_SIZE,
    fits_registers,
    has_capability,
    integer,
    keeps_threads_busy,
    pipelines_blocks,
    programs_at_once,
)
from search_spaces.kernels.quantize.triton_kernels import (
    amax_parts_kernel,
    group_kernel,
    merge_parts_kernel,
    row_kernel,
    tensor_codes_kernel,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Which elements share a scale.
SCALES = ("row", "block128", "tensor")
#: Elements of a row that share a scale by blocks.
GROUP = 128
#: The smallest and the largest block of a long row or of all elements.
_SMALLEST, _LARGEST = 1024, 32768
_MOST_GROUPS, _MOST_STEPS, _DEEPEST = 64, 8, 4
#: Programs that find the largest magnitude of all elements: each block of the next launch reads
#: one magnitude of every program.
_LEAST_PARTS, _MOST_PARTS = 128, 1024
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 64, 4
_USUAL_HELD, _USUAL_GROUPS, _USUAL_BLOCK, _USUAL_PARTS = 16, 16, 4096, 512


def check_elements(kernel: str, workload: Workload) -> None:
    """Raise `WorkloadError` where a launch would have more programs than a grid takes."""
    if workload["scales"] != "tensor" and groups(workload) > MAX_SIZE:
        raise WorkloadError(
            f"{kernel} [{workload.key}]: there are {groups(workload)} scales, more than {MAX_SIZE}",
            "give fewer rows",
        )


def group_length(workload: Workload) -> int:
    """Adjacent elements of a row that share a scale."""
    return GROUP if workload["scales"] == "block128" else workload.size("cols")


def groups(workload: Workload) -> int:
    """Groups of all rows."""
    return workload.size("rows") * ceil_div(workload.size("cols"), group_length(workload))


def scale_shape(workload: Workload) -> tuple[int, ...]:
    """[1], [rows] or [rows, blocks of a row]."""
    rows, scales = workload.size("rows"), workload.text("scales")
    if scales == "block128":
        return rows, ceil_div(workload.size("cols"), GROUP)
    return (1,) if scales == "tensor" else (rows,)


def part_specs(workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
    """The magnitudes that the first of two launches leaves to the second."""
    if workload["scales"] != "tensor":
        return {}
    return {"part": workload.spec(integer(config, "parts"), dtype="float32")}


# -- the space -------------------------------------------------------------------------------------
def magnitude_space(
    workload: Workload, kernel: str, more: Sequence[Parameter] = (), *, codes: bool
) -> SearchSpace:
    """Blocks, groups, warps, steps, stages and `more`. codes: whether the kernel writes codes."""
    scales = workload.text("scales")
    parameters: list[Parameter] = [PowerOfTwo("num_warps", 1, 16)]
    if scales == "tensor":
        most_parts = _most_parts(workload)
        parameters += [
            PowerOfTwo("BLOCK", _SMALLEST, _LARGEST // 2),
            PowerOfTwo("parts", min(_LEAST_PARTS, most_parts), most_parts),
            Integer("stages", 1, _DEEPEST),
        ]
        if codes:
            parameters += [PowerOfTwo("steps", 1, _MOST_STEPS), Boolean("reversed")]
    else:
        parameters += _group_parameters(workload)
    return SearchSpace(
        [*parameters, *more],
        CONSTRAINTS,
        kernel=kernel,
        admits=("BLOCK", "parts", "stages", "steps", "reversed", "GROUPS", "stream"),
    )


def _group_parameters(workload: Workload) -> list[Parameter]:
    """Steps and stages of programs that hold whole groups; stages alone for longer rows."""
    most, several = groups(workload), _MOST_GROUPS
    parameters: list[Parameter] = []
    when = None
    if workload["scales"] == "row":
        whole = next_power_of_two(workload.size("cols"))
        largest = min(_LARGEST, whole)
        parameters.append(PowerOfTwo("BLOCK", min(_SMALLEST, largest), largest))
        several = max(1, min(several, _LARGEST // whole))
        when = {"BLOCK": (whole,)}
    if when is None or whole == largest:
        parameters += [
            PowerOfTwo("GROUPS", 1, min(several, next_power_of_two(most)), when=when),
            PowerOfTwo("steps", 1, min(_MOST_STEPS, next_power_of_two(most)), when=when),
            Boolean("stream", when=when),
        ]
    return [*parameters, Integer("stages", 1, _DEEPEST)]


def default_point(workload: Workload) -> Config:
    """Rows as a whole up to 8,192 elements, else in such blocks; 16 elements for each thread."""
    scales = workload.text("scales")
    if scales == "tensor":
        elements = workload.size("rows") * workload.size("cols")
        blocks = ceil_div(elements, _USUAL_BLOCK)
        fitting = max(_LEAST_PARTS, next_power_of_two(blocks + 1) // 2)
        parts = min(_USUAL_PARTS, fitting, _most_parts(workload))
        return {"num_warps": 4, "BLOCK": _USUAL_BLOCK, "parts": parts, "stages": 1}
    whole: dict[str, int | bool] = {"steps": 1, "stream": False}
    if scales == "row":
        cols = workload.size("cols")
        block = min(8192, next_power_of_two(cols))
        warps = max(1, min(8, block // (_USUAL_HELD * 32)))
        more = {"GROUPS": 1, **whole} if block >= cols else {}
        return {"num_warps": warps, "BLOCK": block, "stages": 1, **more}
    fitting = min(_USUAL_GROUPS, next_power_of_two(groups(workload)))
    return {"num_warps": max(1, fitting // 4), "GROUPS": fitting, "stages": 1, **whole}


def _most_parts(workload: Workload) -> int:
    elements = workload.size("rows") * workload.size("cols")
    return max(1, min(_MOST_PARTS, next_power_of_two(elements) // _SMALLEST))


def _block(config: Config, workload: Workload) -> int:
    """Elements that each group, or a program, works on at a time."""
    return GROUP if "BLOCK" not in config else integer(config, "BLOCK")


def _held(config: Config, workload: Workload) -> int:
    return _block(config, workload) * integer(config, "GROUPS")


def _is_whole(config: Config, workload: Workload) -> bool:
    """Whether a program holds whole groups, so that x is read once."""
    return _block(config, workload) >= group_length(workload)


def _loops(config: Config, workload: Workload) -> int:
    """Steps of the longest loop that a program has."""
    elements = workload.size("rows") * workload.size("cols")
    if workload["scales"] == "tensor":
        blocks = ceil_div(elements, integer(config, "BLOCK"))
        return max(ceil_div(blocks, integer(config, "parts")), integer(config, "steps"))
    if _is_whole(config, workload):
        return integer(config, "steps")
    return ceil_div(workload.size("cols"), integer(config, "BLOCK"))


def _fills_device(config: Config, workload: Workload, device: Device) -> bool:
    """Several groups or steps leave a program for each multiprocessor."""
    if workload["scales"] == "tensor":
        elements = workload.size("rows") * workload.size("cols")
        programs = ceil_div(ceil_div(elements, integer(config, "BLOCK")), integer(config, "steps"))
        return integer(config, "steps") == 1 or programs >= programs_at_once(device)
    each = integer(config, "GROUPS") * integer(config, "steps")
    least = min(programs_at_once(device), ceil_div(groups(workload), _USUAL_GROUPS))
    return each == 1 or ceil_div(groups(workload), each) >= least


def _parts_have_blocks(config: Config, workload: Workload, device: Device) -> bool:
    if workload["scales"] != "tensor":
        return True
    elements = workload.size("rows") * workload.size("cols")
    blocks = ceil_div(elements, integer(config, "BLOCK"))
    return integer(config, "parts") <= max(blocks, _LEAST_PARTS)


def converts_float8(device: Device) -> bool:
    """Whether the target has instructions that convert float8_e4m3fn."""
    return has_capability(device, 89)


def _converts(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("convert") != "hardware" or converts_float8(device)


def _needs_bits(config: Config, workload: Workload, device: Device) -> bool:
    return config.get("convert") != "bits" or not converts_float8(device)


#: Constraints of `convert_parameter`.
CONVERSIONS = (
    Constraint("convert", _converts, "the target has no instruction for float8_e4m3fn"),
    Constraint("bits", _needs_bits, "the target has an instruction for float8_e4m3fn"),
)
CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_held, _MOST_HELD),
    keeps_threads_busy(_held, _LEAST_HELD),
    Preference("fill", _fills_device, "programs would be fewer than multiprocessors"),
    Preference("parts", _parts_have_blocks, "some parts would have no block"),
    pipelines_blocks(_loops),
    *CONVERSIONS,
)


def convert_parameter(workload: Workload, dim: str) -> list[Parameter]:
    """How float8 is converted: by instructions for it, or for integers. dim: names the dtype."""
    ways = ("hardware", "bits")
    return [Choice("convert", ways)] if workload[dim] == FLOAT8 else []


def default_conversion(workload: Workload, dim: str, device: Device) -> Config:
    """The way that the target has."""
    if workload[dim] != FLOAT8:
        return {}
    return {"convert": "hardware" if converts_float8(device) else "bits"}


# -- the launches ----------------------------------------------------------------------------------
def tensor_launches(
    workload: Workload, config: Config, tensors: Tensors, q: torch.Tensor | None, largest: float
) -> list[Launch]:
    """Magnitudes of parts; then their largest or, with `q`, all codes."""
    x, part, blocked = tensors["x"], tensors["part"], integer(config, "BLOCK")
    elements, parts = x.numel(), integer(config, "parts")
    usual = {"BLOCK": blocked, "LOAD_STAGES": config["stages"], "num_warps": config["num_warps"]}
    usual["WIDE"] = counts_wide(elements, blocked)
    first = Launch(amax_parts_kernel, (parts,), (x, part, elements), usual)
    if q is None:
        constants: dict[str, Any] = {"PARTS": parts, "num_warps": 4}
        return [first, Launch(merge_parts_kernel, (1,), (part, tensors["out"]), constants)]
    constants = {**usual, "PARTS": parts, "LARGEST": largest, "REVERSED": config["reversed"]}
    grid = (ceil_div(ceil_div(elements, blocked), integer(config, "steps")),)
    arguments = (x, part, q, tensors["scale"], elements)
    return [first, Launch(tensor_codes_kernel, grid, arguments, constants)]


def group_launches(
    workload: Workload,
    config: Config,
    x: torch.Tensor,
    q: torch.Tensor | None,
    scale: torch.Tensor,
    largest: float,
) -> list[Launch]:
    """Whole groups by one kernel, longer rows by another. q: None for magnitudes alone."""
    cols, length = workload.size("cols"), group_length(workload)
    constants: dict[str, Any] = {
        "COLS": cols,
        "BLOCK": _block(config, workload),
        "LOAD_STAGES": config["stages"],
        "CODES": q is not None,
        "LARGEST": largest,
        "num_warps": config["num_warps"],
    }
    if not _is_whole(config, workload):
        return [Launch(row_kernel, (workload.size("rows"),), (x, q, scale), constants)]
    each, count = integer(config, "GROUPS"), groups(workload)
    constants |= {
        "LENGTH": length,
        "GROUPS": each,
        "EVEN": length == constants["BLOCK"] and cols % length == 0 and count % each == 0,
        "LOOP": integer(config, "steps") > 1,
        "STREAM": bool(config.get("stream")),
    }
    grid = (ceil_div(ceil_div(count, each), integer(config, "steps")),)
    return [Launch(group_kernel, grid, (x, q, scale, count), constants)]
