"""The space of the convolutions: tiles of the product, order of its sums, splits and loads."""

from __future__ import annotations

from functools import cache

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint, Preference
from search_spaces.kernels.dtypes import ELEMENT_BYTES
from search_spaces.kernels.features import product_tile_features
from search_spaces.kernels.images import windows_of
from search_spaces.kernels.limits import (
    DESCRIPTORS,
    TENSOR_FLOATS,
    block_parameter,
    fits_registers,
    fits_shared,
    integer,
    nearest_values,
    programs_at_once,
)
from search_spaces.params import Boolean, Choice, Integer, Parameter, PowerOfTwo, When
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace

#: Usual tiles without tuning; the default config is the first that is feasible.
_USUAL: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2},
)
_USUAL_FLOAT32: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2},
)
#: float32 sums that a thread holds at most.
_MOST_SUMS = 128
#: Widest tile over several groups, most of whose products are zeros.
_MOST_BUNDLED = 64
#: Channels below which the taps of a row are worth summing together.
_FEW_CHANNELS = 32
_MOST_SPLITS = 8
#: Tiles of 128 x 128 for each multiprocessor beyond which sums are not split.
_ENOUGH = 2


def groups(workload: Workload) -> tuple[int, int, int]:
    """Groups, and the input and output channels of each."""
    count = workload.size("groups")
    return count, workload.size("in_channels") // count, workload.size("out_channels") // count


def bundle(config: Config, workload: Workload) -> int:
    """Groups whose output channels share a tile."""
    count, _, group_out = groups(workload)
    return max(1, min(count, integer(config, "BLOCK_N") // group_out))


def by_row(config: Config) -> bool:
    """Whether the taps of a kernel's row are summed together."""
    return config.get("order") == "row"


def takes_rows(workload: Workload) -> bool:
    """Whether channels of neighbouring taps are neighbours in memory, and few per tap."""
    count, group_in, _ = groups(workload)
    dense = count == 1 and workload.size("dilation") == 1
    return dense and workload.size("kernel_w") > 1 and group_in < _FEW_CHANNELS


def takes_descriptors(workload: Workload) -> bool:
    """Whether tensor descriptors can describe images and weights.

    Pixels need whole words of 16 bytes, and images whole strides.
    """
    count, channels, _ = groups(workload)
    sides = (workload.size("height"), workload.size("width"))
    aligned = channels * ELEMENT_BYTES[workload.text("dtype")] % 16 == 0
    single = windows_of(workload).flattened().height == 1
    whole = single or all(side % workload.size("stride") == 0 for side in sides)
    return count == 1 and aligned and whole


@cache
def tile_sides(pixels: int, batch: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of the tile of `pixels` pixels that wastes the fewest.

    A tile is part of a row, of a column, or the same pixel of several images, so that it is a
    matrix in shared memory. Triton takes a tile of more dimensions into registers instead, from
    which its product reads asynchronously. With Triton 3.6 for cuda:90, the machine code of one
    config loads the next tile into the same registers without a wait (`LDSM` while three `HGMMA`
    are in flight), and its results on an H200 were wrong. Of equally good tiles, the widest is
    taken.
    """
    sides = [(1, pixels), (pixels, 1), (1, 1)]

    def tiles(side: tuple[int, int]) -> int:
        images = ceil_div(batch, pixels // (side[0] * side[1]))
        return images * ceil_div(height, side[0]) * ceil_div(width, side[1])

    return min(sides, key=lambda side: (tiles(side), -side[1], -side[0]))


def convolution_space(workload: Workload) -> SearchSpace:
    """Tiles of 64 to 256 pixels and 16 to 256 channels.

    `order`: sums run through the taps, or through the rows of the kernel (`row`), which wastes less
    where there are few channels. Groups of few channels share a tile.
    """
    pixels = windows_of(workload).pixels
    count, group_in, group_out = groups(workload)
    single = workload["dtype"] == "float32"
    widest = group_out if count == 1 else max(group_out, min(_MOST_BUNDLED, group_out * count))
    run = max(group_in, min(_MOST_BUNDLED, group_in * count))
    orders = ["tap"]
    if takes_rows(workload):
        orders = ["row", "tap"]
        run = group_in * workload.size("kernel_w")
    shallow = single or count > 1 or run < 2 * _FEW_CHANNELS
    narrow = 16 if widest <= 32 or count > 1 else 32
    parameters: list[Parameter] = [
        block_parameter("BLOCK_M", pixels, 64, 256),
        block_parameter("BLOCK_N", widest, narrow, 256),
        block_parameter("BLOCK_K", run, 16 if shallow else 32, 64 if single else 128),
        Choice("GROUP_M", (1, 8)),
        PowerOfTwo("num_warps", 4, 8),
        Integer("num_stages", 2, 5),
    ]
    if len(orders) > 1:
        parameters.append(Choice("order", orders))
    described: When | None = None
    if takes_descriptors(workload):
        parameters.append(Choice("loads", ("pointer", "descriptor")))
        described = {"loads": ("descriptor",)}
        parameters.append(Boolean("persistent", when=described))
    if _few_tiles(workload):
        parameters.append(PowerOfTwo("SPLIT_K", 1, _MOST_SPLITS))
    if single:
        parameters.append(Choice("precision", ("ieee", "tf32x3", "tf32")))
    return SearchSpace(
        parameters,
        CONSTRAINTS,
        kernel="convolution",
        features=features,
        admits=("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K"),
    )


def features(config: Config, workload: Workload, device: Device) -> tuple[float, ...]:
    """The features of its tiles, and log2 of the products per operand element a tile loads."""
    rows, cols = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    return product_tile_features(
        config,
        device,
        rows=rows,
        cols=cols,
        stage_bytes=_stage_bytes(config, workload),
        programs=_output_tiles(config, workload) * integer(config, "SPLIT_K"),
    )


def default_point(bound: BoundSpace) -> Config:
    """The config without tuning: a usual tile, cut to the problem and the device."""
    usual = _USUAL_FLOAT32 if bound.workload["dtype"] == "float32" else _USUAL
    for tile in usual:
        cut = nearest_values(bound, tile)
        run = next_power_of_two(_run(bound.complete(cut), bound.workload))
        cut["BLOCK_K"] = min(integer(cut, "BLOCK_K"), max(16, run))
        steps = _steps(bound.complete(cut), bound.workload)
        cut["num_stages"] = min(integer(cut, "num_stages"), max(2, steps))
        config = bound.complete(cut)
        if bound.feasible(config):
            return config
    bound.require_feasible()
    return next(bound.enumerate())


def _few_tiles(workload: Workload) -> bool:
    count, _, group_out = groups(workload)
    tiles = ceil_div(windows_of(workload).pixels, 128) * ceil_div(group_out, 128) * count
    return tiles <= _ENOUGH * 128


def _run(config: Config, workload: Workload) -> int:
    """Terms of a sum that are neighbours in memory."""
    _, group_in, _ = groups(workload)
    if by_row(config):
        return group_in * workload.size("kernel_w")
    return group_in * bundle(config, workload)


def _steps(config: Config, workload: Workload) -> int:
    taps = 1 if by_row(config) else workload.size("kernel_w")
    blocks = ceil_div(_run(config, workload), integer(config, "BLOCK_K"))
    return taps * workload.size("kernel_h") * blocks


def pixel_tiles(config: Config, workload: Workload) -> int:
    """Tiles side by side along the pixels."""
    windows = windows_of(workload).flattened()
    block = integer(config, "BLOCK_M")
    if config.get("loads") != "descriptor":
        return ceil_div(windows.pixels, block)
    sizes = (windows.out_height, windows.out_width)
    sides = tile_sides(block, windows.batch, *sizes)
    images = ceil_div(windows.batch, block // (sides[0] * sides[1]))
    return images * ceil_div(sizes[0], sides[0]) * ceil_div(sizes[1], sides[1])


def channel_tiles(config: Config, workload: Workload) -> int:
    """Tiles side by side along the output channels of a bundle of groups."""
    _, _, group_out = groups(workload)
    return ceil_div(group_out * bundle(config, workload), integer(config, "BLOCK_N"))


def _output_tiles(config: Config, workload: Workload) -> int:
    bundles = ceil_div(workload.size("groups"), bundle(config, workload))
    return pixel_tiles(config, workload) * channel_tiles(config, workload) * bundles


def _stage_bytes(config: Config, workload: Workload) -> int:
    """Shared memory of one stage: a tile of each operand."""
    sides = integer(config, "BLOCK_M") + integer(config, "BLOCK_N")
    return sides * integer(config, "BLOCK_K") * ELEMENT_BYTES[workload.text("dtype")]


def _sums(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_M") * integer(config, "BLOCK_N")


def _fits_shared(config: Config, workload: Workload, device: Device) -> bool:
    """All stages and, in a persistent program, the tile that is still being stored."""
    needed = _stage_bytes(config, workload) * integer(config, "num_stages")
    if config.get("persistent"):
        needed += _sums(config, workload) * ELEMENT_BYTES[workload.text("dtype")]
    return fits_shared(needed, device)


def _blocks_have_terms(config: Config, workload: Workload, device: Device) -> bool:
    run = next_power_of_two(_run(config, workload))
    return integer(config, "BLOCK_K") <= max(16, run)


def _described_blocks_are_taps(config: Config, workload: Workload, device: Device) -> bool:
    """A block of channels beyond the last would be of the next pixel where strides are described.

    Rows of the kernel are not described at all.
    """
    if config.get("loads") != "descriptor":
        return True
    even = workload.size("in_channels") % integer(config, "BLOCK_K") == 0
    return not by_row(config) and (even or workload.size("stride") == 1)


def _described_tiles_are_full(config: Config, workload: Workload, device: Device) -> bool:
    """At most half of the pixels of all tiles are wasted, unless all tiles run at once."""
    if config.get("loads") != "descriptor":
        return True
    pixels = windows_of(workload).flattened().pixels
    least = ceil_div(pixels, integer(config, "BLOCK_M"))
    return pixel_tiles(config, workload) <= max(2 * least, programs_at_once(device))


def _groups_rows(config: Config, workload: Workload, device: Device) -> bool:
    rows, cols = pixel_tiles(config, workload), channel_tiles(config, workload)
    queued = rows > 1 < cols and rows * cols > programs_at_once(device)
    return config["GROUP_M"] == 1 or queued


def _pipelines(config: Config, workload: Workload, device: Device) -> bool:
    steps = ceil_div(_steps(config, workload), integer(config, "SPLIT_K"))
    return integer(config, "num_stages") <= max(2, steps) or bool(config.get("persistent"))


def _split_has_work(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    return splits == 1 or _steps(config, workload) >= 4 * splits


def _split_is_needed(config: Config, workload: Workload, device: Device) -> bool:
    splits = integer(config, "SPLIT_K")
    programs = _output_tiles(config, workload) * splits
    return splits == 1 or programs <= 4 * programs_at_once(device)


def _persistence_pays(config: Config, workload: Workload, device: Device) -> bool:
    if not config.get("persistent"):
        return True
    splits = integer(config, "SPLIT_K")
    return splits == 1 and _output_tiles(config, workload) > programs_at_once(device)


CONSTRAINTS = (
    Constraint("shared", _fits_shared, "tiles x stages do not fit into shared memory"),
    fits_registers(_sums, _MOST_SUMS),
    Preference("terms", _blocks_have_terms, "half of BLOCK_K would be empty"),
    Constraint("taps", _described_blocks_are_taps, "descriptors need blocks of whole taps"),
    Preference(
        "described_tiles", _described_tiles_are_full, "tiles of images would be mostly empty"
    ),
    Preference("group", _groups_rows, "all tiles run at once, so their order does not matter"),
    Preference("pipeline", _pipelines, "a program has too few steps to load so far ahead"),
    Preference("split_work", _split_has_work, "each split would have fewer than four steps"),
    Preference("split_need", _split_is_needed, "there are tiles enough without splitting so much"),
    Preference("persistent", _persistence_pays, "all tiles run at once, or sums are split"),
    DESCRIPTORS,
    TENSOR_FLOATS,
)
