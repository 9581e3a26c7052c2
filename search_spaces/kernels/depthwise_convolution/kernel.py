"""2-D depthwise convolution: each channel of an image by its own kernel, without tensor cores.

Memory-bound for 3 x 3 kernels: the least traffic is one read of the images and one write of the
result. A 7 x 7 kernel has 49 products per result, about as many as the memory leaves time for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.constraints import Constraint
from search_spaces.dims import Dims
from search_spaces.edges import SPECIAL_EDGES
from search_spaces.kernel import Cost, Kernel, Launch
from search_spaces.kernels.depthwise_convolution.triton_kernels import depthwise_kernel
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.images import (
    MOST_SIZE,
    WINDOW_DIMS,
    check_windows,
    convolved,
    cudnn_convolved,
    small_images,
    window_dims,
    windows_of,
)
from search_spaces.kernels.limits import (
    BLOCK_EXISTS,
    integer,
    keeps_threads_busy,
    programs_at_once,
    threads,
)
from search_spaces.params import Boolean, Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors, generator, random_tensor

if TYPE_CHECKING:
    import torch

#: float32 values that a thread holds at most, and results of a strip at least.
_MOST_HELD, _LEAST_HELD = 160, 2
#: Taps from which a launch computes longer than it waits for memory, and blocks of a strip for each
#: multiprocessor up to which the usual strips are shorter.
_MANY_TAPS, _ENOUGH = 49, 4
#: Bytes of the widest load.
_WORD_BYTES = 16
_MOST_COLUMNS = 8
#: Rows of a kernel that are worth unrolling; more take too many registers and too long to compile.
_MOST_ROWS = 3


class DepthwiseConvolution(Kernel):
    """Convolution of every channel of x[batch, height, width, channels] with its own kernel; dims
    batch, height, width, channels, kernel_h, kernel_w, stride, padding_h, padding_w, dilation and
    dtype.

    stride and dilation are the same in both directions; padding_h and padding_w are the zeros on
    either side. The weights are given twice: as torch has them, weight[channels, kernel_h,
    kernel_w, 1], for the baselines; and as a library would keep them for this kernel,
    packed[kernel_h, kernel_w, channels].
    """

    name = "depthwise_convolution"
    edges = SPECIAL_EDGES
    dims = Dims(
        batch=MOST_SIZE,
        height=MOST_SIZE,
        width=MOST_SIZE,
        channels=MOST_SIZE,
        **WINDOW_DIMS,
        dtype=DTYPES,
    )
    arguments = ("x", "weight")
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(64, 112, 32, 3),  # MobileNet-v2
            _workload(64, 112, 96, 3, 2),
            _workload(64, 56, 144, 3),
            _workload(64, 14, 576, 3),
            _workload(64, 7, 960, 3),
            _workload(64, 56, 144, 5, 2),  # EfficientNet-B0
            _workload(64, 28, 240, 5),
            _workload(64, 14, 672, 5),
            _workload(64, 56, 96, 7, dtype="bfloat16"),  # ConvNeXt-T
            _workload(64, 28, 192, 7, dtype="bfloat16"),
            _workload(64, 14, 384, 7, dtype="bfloat16"),
            _workload(64, 7, 768, 7, dtype="bfloat16"),
            _workload(16, 56, 144, 3, dtype="float32"),
            _workload(3, 33, 37, 3, dilation=2, dtype="float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        check_windows(self.name, workload)

    def small_workload(self, workload: Workload) -> Workload:
        few = 24 if workload.size("channels") % 8 == 0 else 21
        return small_images(workload).with_dims(channels=min(few, workload.size("channels")))

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        source = generator(seed, device)
        taps, channels = workload.sizes("kernel_h", "kernel_w"), workload.size("channels")
        sizes = (workload.size(name) for name in ("batch", "height", "width"))
        x = random_tensor(workload.spec(*sizes, channels), source, device)
        # Scaled so that outputs are of the order of one.
        spec = workload.spec(channels, *taps, 1)
        weight = random_tensor(spec, source, device, scale=1 / sqrt(taps[0] * taps[1]))
        if device == "meta":
            packed = random_tensor(workload.spec(*taps, channels), None, device)
        else:
            packed = weight[..., 0].permute(1, 2, 0).contiguous()
        return {"x": x, "weight": weight, "packed": packed}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        windows = windows_of(workload)
        sizes = (windows.batch, windows.out_height, windows.out_width)
        return {"out": workload.spec(*sizes, "channels")}

    def cost(self, workload: Workload) -> Cost:
        windows, (high, wide) = windows_of(workload), workload.sizes("kernel_h", "kernel_w")
        read = windows.batch * windows.height * windows.width
        elements = (read + windows.pixels + high * wide) * workload.size("channels")
        return Cost(
            flops=2.0 * windows.pixels * workload.size("channels") * high * wide,
            bytes=float(elements * ELEMENT_BYTES[workload.text("dtype")]),
        )

    def space(self, workload: Workload) -> SearchSpace:
        channels, windows = next_power_of_two(workload.size("channels")), windows_of(workload)
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_P", 1, min(32, next_power_of_two(windows.pixels))),
            PowerOfTwo("BLOCK_C", min(16, channels), min(256, channels)),
            PowerOfTwo("columns", 1, min(_MOST_COLUMNS, next_power_of_two(windows.out_width))),
            PowerOfTwo("num_warps", 1, 8),
        ]
        if 1 < workload.size("kernel_h") <= _MOST_ROWS:
            parameters.append(Boolean("unroll"))
        return SearchSpace(
            parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_P", "BLOCK_C", "columns")
        )

    def default_config(self, workload: Workload, device: Device) -> Config:
        return _default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        windows, channels = windows_of(workload), workload.size("channels")
        columns = integer(config, "columns")
        strips = windows.batch * windows.out_height * ceil_div(windows.out_width, columns)
        constants = {
            **windows.constants(),
            "CHANNELS": channels,
            "COLUMNS": columns,
            "UNROLL": bool(config.get("unroll", False)),
            "BLOCK_P": config["BLOCK_P"],
            "BLOCK_C": config["BLOCK_C"],
            "num_warps": config["num_warps"],
        }
        grid = (
            ceil_div(strips, integer(config, "BLOCK_P")),
            ceil_div(channels, integer(config, "BLOCK_C")),
        )
        arguments = (tensors["x"], tensors["packed"], tensors["out"], strips)
        return [Launch(depthwise_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        windows, channels = windows_of(workload), workload.size("channels")

        def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return convolved(x, weight, windows, channels)

        return eager

    def alternatives(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        windows, channels = windows_of(workload), workload.size("channels")
        vendor = partial(cudnn_convolved, windows=windows, groups=channels, tf32=False)
        return {"vendor": vendor}


def _workload(
    batch: int,
    size: int,
    channels: int,
    taps: int,
    stride: int = 1,
    *,
    dilation: int = 1,
    dtype: str = "float16",
) -> Workload:
    """A workload of square images, padded so that a stride of 1 keeps their size."""
    return Workload.of(
        batch=batch,
        height=size,
        width=size,
        channels=channels,
        **window_dims(taps, stride, dilation * (taps // 2), dilation),
        dtype=dtype,
    )


def _default_point(bound: BoundSpace) -> Config:
    """Long strips, which read each pixel for most taps at once, of two channels for a thread.

    A program has all channels up to 256, with as few warps as they need: lanes without a channel
    cost nothing where the launch waits for memory. From 7 x 7 taps on it computes, and takes only
    as many channels as divide theirs. Strips are shorter where programs would be few.
    """
    sizes = {
        item.name: int(str(item.values()[-1]))
        for item in bound.parameters
        if item.name in ("BLOCK_C", "columns")
    }
    channels, (high, wide) = (
        bound.workload.size("channels"),
        bound.workload.sizes("kernel_h", "kernel_w"),
    )
    block_c = min(sizes["BLOCK_C"], 256)
    if high * wide >= _MANY_TAPS:
        block_c = min(block_c, 128)
        while block_c > 16 and channels % block_c:
            block_c //= 2
    windows = windows_of(bound.workload)
    blocks = ceil_div(channels, block_c) * windows.pixels
    few = _ENOUGH * programs_at_once(bound.device)
    longest = [size for size in (8, 4, 2) if size <= sizes["columns"] and blocks // size >= few]
    for columns in (*longest, 1):
        for each in (2, 1):
            for warps in (8, 4, 2, 1) if block_c < 128 else (max(1, block_c // 64), 1):
                lanes = warps * (bound.device.warp_size or 32)
                config = bound.complete(
                    {
                        "BLOCK_P": max(1, each * lanes // block_c),
                        "BLOCK_C": block_c,
                        "columns": columns,
                        "num_warps": warps,
                        "unroll": bound.workload.size("kernel_h") <= 3,
                    }
                )
                if bound.feasible(config):
                    return config
    bound.require_feasible()
    return next(bound.enumerate())


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_P") * integer(config, "BLOCK_C")


def _fits_registers(config: Config, workload: Workload, device: Device) -> bool:
    """The sums of a strip, one pixel, and the weights of one row of the kernel."""
    results = max(1, _tile(config, workload) // threads(config, device))
    word = _WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")]
    weights = min(results, word) * workload.size("kernel_w")
    return results * (integer(config, "columns") + 1) + weights <= _MOST_HELD


CONSTRAINTS = (
    BLOCK_EXISTS,
    Constraint("registers", _fits_registers, f"a thread would hold more than {_MOST_HELD} values"),
    keeps_threads_busy(_tile, _LEAST_HELD),
)
