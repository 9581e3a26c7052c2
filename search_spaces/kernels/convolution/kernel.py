"""2-D convolution in Triton as an implicit matrix product, with groups, strides and dilation.

Bound by arithmetic for 3 x 3 kernels of many channels, by memory for 1 x 1 kernels of few. For
float32, `precision` is a parameter, and the workload's `tolerance` decides which is admissible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims, tolerance_of
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch, Tolerance
from search_spaces.kernels.convolution.space import (
    bundle,
    by_row,
    channel_tiles,
    convolution_space,
    default_point,
    groups,
    pixel_tiles,
    takes_descriptors,
    tile_sides,
)
from search_spaces.kernels.convolution.triton_kernels import (
    convolution_kernel,
    described_convolution_kernel,
)
from search_spaces.kernels.convolution.workloads import WORKLOADS
from search_spaces.kernels.dtypes import DTYPES, ROUNDING
from search_spaces.kernels.images import (
    MOST_SIZE,
    WINDOW_DIMS,
    check_windows,
    convolved,
    cudnn_convolved,
    small_images,
    windows_of,
)
from search_spaces.kernels.limits import integer
from search_spaces.kernels.matmul.triton_kernels import sum_splits_kernel
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, sm_count

if TYPE_CHECKING:
    import torch

_SUM_BLOCK = 1024


class Convolution(Kernel):
    """Convolution of x[batch, height, width, in_channels] with weight[out_channels, kernel_h,
    kernel_w, in_channels / groups]; dims batch, height, width, in_channels, out_channels, kernel_h,
    kernel_w, stride, padding_h, padding_w, dilation, groups, dtype and, optionally, tolerance
    (relative error).

    stride and dilation are the same in both directions; padding_h and padding_w are the zeros on
    either side. groups divides in_channels and out_channels; an output channel is summed over the
    input channels of its group. The result is out[batch, out_height, out_width, out_channels]; this
    is torch's convolution in the memory format channels_last.
    """

    name = "convolution"
    edges = ALL_EDGES
    dims = Dims(
        batch=MOST_SIZE,
        height=MOST_SIZE,
        width=MOST_SIZE,
        in_channels=MOST_SIZE,
        out_channels=MOST_SIZE,
        **WINDOW_DIMS,
        groups=MOST_SIZE,
        dtype=DTYPES,
        tolerance=float,
    )

    def workloads(self) -> Sequence[Workload]:
        return WORKLOADS

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_windows(self.name, workload)
        count, where = workload.size("groups"), f"{self.name} [{workload.key}]"
        for name in ("in_channels", "out_channels"):
            if workload.size(name) % count:
                raise WorkloadError(
                    f"{where}: {name} is {workload.size(name)}, not a multiple of {count} groups",
                    f"give {name} that groups divides",
                )

    def small_workload(self, workload: Workload) -> Workload:
        count, group_in, group_out = groups(workload)
        # Descriptors need pixels of whole 16 bytes, so where the workload has them, keep them.
        few, most = min(count, 6), 24 if takes_descriptors(workload) else 21
        return small_images(workload).with_dims(
            groups=few,
            in_channels=few * min(group_in, most),
            out_channels=few * min(group_out, 37),
        )

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        weight = _weight_shape(workload)
        # Scaled so that outputs are of the order of one.
        scale = 1 / sqrt(weight[1] * weight[2] * weight[3])
        return {
            "x": workload.spec(*_image_shape(workload)),
            "weight": workload.spec(*weight, scale=scale),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        windows = windows_of(workload)
        sizes = (windows.batch, windows.out_height, windows.out_width)
        return {"out": workload.spec(*sizes, "out_channels")}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits = integer(config, "SPLIT_K")
        if splits == 1:
            return {}
        pixels = windows_of(workload).pixels
        return {"partial": workload.spec(splits, pixels, "out_channels", dtype="float32")}

    def tolerance(self, workload: Workload) -> Tolerance:
        """The workload's own, else the rounding error of the output or of the sums in float32."""
        usual = ROUNDING[workload.text("dtype")]
        if workload["dtype"] == "float32":
            _, height, width, channels = _weight_shape(workload)
            usual = max(1e-6 * sqrt(height * width * channels), usual)
        relative = tolerance_of(workload, usual)
        # Errors are roughly normal over outputs of the order of one: 8 standard deviations.
        return Tolerance(relative, 8 * relative)

    def flops(self, workload: Workload) -> float:
        windows = windows_of(workload)
        out_channels, *sizes = _weight_shape(workload)
        terms = sizes[0] * sizes[1] * sizes[2]
        return 2.0 * windows.pixels * out_channels * terms

    def space(self, workload: Workload) -> SearchSpace:
        return convolution_space(workload)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        described = config.get("loads") == "descriptor"
        launch = _described_launch if described else _pointer_launch
        out = tensors["out"]
        if integer(config, "SPLIT_K") == 1:
            return [launch(workload, config, tensors, out)]
        partial_sums = tensors["partial"]
        constants = {
            "SPLIT_K": config["SPLIT_K"],
            "BLOCK": _SUM_BLOCK,
            "EVEN": out.numel() % _SUM_BLOCK == 0,
        }
        grid = (ceil_div(out.numel(), _SUM_BLOCK),)
        arguments = (partial_sums, out, out.numel())
        return [
            launch(workload, config, tensors, partial_sums),
            Launch(sum_splits_kernel, grid, arguments, constants),
        ]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        windows, count = windows_of(workload), workload.size("groups")

        def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return convolved(x, weight, windows, count)

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        windows, count = windows_of(workload), workload.size("groups")
        vendor = partial(cudnn_convolved, windows=windows, groups=count)
        found = {"vendor": partial(vendor, tf32=False)}
        if workload["dtype"] == "float32":
            found["vendor_tf32"] = partial(vendor, tf32=True)
        return found


def _image_shape(workload: Workload) -> tuple[int, int, int, int]:
    batch, height, width = workload.sizes("batch", "height", "width")
    return batch, height, width, workload.size("in_channels")


def _weight_shape(workload: Workload) -> tuple[int, int, int, int]:
    sides = workload.size("kernel_h"), workload.size("kernel_w")
    return workload.size("out_channels"), *sides, groups(workload)[1]


def _tile_constants(workload: Workload, config: Config, tensors: Tensors) -> dict[str, Any]:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
    largest = max(tensor.numel() for tensor in tensors.values())
    return {
        **{name: config[name] for name in names},
        "CHANNELS": workload.size("in_channels"),
        "OUT_CHANNELS": workload.size("out_channels"),
        "SPLIT_K": integer(config, "SPLIT_K"),
        # Tiles at the edge compute addresses of up to a window and a block beyond the images.
        "WIDE": largest >= 2**30,
        "PRECISION": config.get("precision", "ieee"),
        "INTERPRETED": bool(triton.knobs.runtime.interpret),
    }


def _pointer_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor
) -> Launch:
    windows, (count, group_in, group_out) = windows_of(workload).flattened(), groups(workload)
    bundled = bundle(config, workload)
    constants = {
        **windows.constants(),
        **_tile_constants(workload, config, tensors),
        "GROUP_IN": group_in,
        "GROUP_OUT": group_out,
        "BUNDLE": bundled,
        "BY_ROW": by_row(config),
    }
    tiles = pixel_tiles(config, workload) * channel_tiles(config, workload)
    grid = (tiles, ceil_div(count, bundled) * integer(config, "SPLIT_K"))
    arguments = (tensors["x"], tensors["weight"], out, windows.pixels)
    return Launch(convolution_kernel, grid, arguments, constants)


def _described_order(high: int, wide: int) -> tuple[str, ...]:
    """The dimensions of images as described: the one that a tile has several of before channels."""
    if wide > 1:
        return ("image", "y", "phase", "x", "channel")
    if high > 1:
        return ("image", "phase", "x", "y", "channel")
    return ("y", "phase", "x", "image", "channel")


def _described_launch(
    workload: Workload, config: Config, tensors: Tensors, out: torch.Tensor
) -> Launch:
    windows, channels = windows_of(workload).flattened(), workload.size("in_channels")
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    high, wide = tile_sides(block_m, windows.batch, windows.out_height, windows.out_width)
    height, width, stride = windows.height, windows.width, windows.stride
    row = width * channels
    dims = {
        "image": (windows.batch, height * row, block_m // (high * wide)),
        "y": (ceil_div(height, stride), stride * row, high),
        # An image of one row has no other phase.
        "phase": (min(stride, height), row, 1),
        "x": (width // stride, stride * channels, wide),
        "channel": (stride * channels, 1, block_k),
    }
    shape, strides, block = zip(*(dims[name] for name in _described_order(high, wide)), strict=True)
    x_desc = TensorDescriptor(tensors["x"], list(shape), list(strides), list(block))
    taps, out_channels = windows.kernel_h * windows.kernel_w, workload.size("out_channels")
    w_desc = TensorDescriptor(
        tensors["weight"],
        [taps, out_channels, channels],
        [channels, taps * channels, 1],
        [1, block_n, block_k],
    )
    sizes = windows.constants()
    constants = {
        **{name: sizes[name] for name in sizes if name not in ("HEIGHT", "WIDTH")},
        **_tile_constants(workload, config, tensors),
        "TILE_H": high,
        "TILE_W": wide,
        "PERSISTENT": bool(config["persistent"]),
    }
    tiles = pixel_tiles(config, workload) * channel_tiles(config, workload)
    if config["persistent"]:
        tiles = min(tiles, sm_count(tensors["x"]))
    grid = (tiles, integer(config, "SPLIT_K"))
    arguments = (x_desc, w_desc, out, windows.batch)
    return Launch(described_convolution_kernel, grid, arguments, constants)
