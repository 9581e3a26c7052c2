"""2-D pooling to a result of a given size, in either memory layout.

Memory-bound: the least traffic is one read of the images and one write of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.bound import BoundSpace
from search_spaces.declaration.dimensions import check_dims
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Cost, Kernel, Launch, TensorSpec, Tolerance
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES, ROUNDING
from search_spaces.kernels.launch_limits import (
    BLOCK_EXISTS,
    fits_registers,
    integer,
    keeps_threads_busy,
)
from search_spaces.kernels.pooling.adaptive_triton import adaptive_kernel
from search_spaces.kernels.pooling.kernel import LAYOUTS, OPERATIONS
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import compiled, generator, named, random_tensor

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Tensors

#: Sides whose products with one another are 32-bit integers.
_MOST_SIZE = 32767
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 1
#: Output pixels of all images, whose numbers are 32-bit integers.
_MOST_PIXELS = 2**31 - 2**16


class AdaptivePooling(Kernel):
    """Pooled images of out_height x out_width pixels, whatever their size; dims batch, channels,
    height, width, out_height, out_width, operation, layout and dtype.

    The window of output row i are rows floor(i height / out_height) to
    ceil((i + 1) height / out_height), as torch's adaptive pooling has them; 1 x 1 is global
    pooling. operation: max, or average. layout: nhwc or nchw, of x and out alike.
    """

    name = "adaptive_pooling"

    def workloads(self) -> Sequence[Workload]:
        return [
            _workload(64, 2048, 7, 1, "average", "nhwc", "float16"),  # ResNet-50's head
            _workload(64, 32, 112, 1, "average", "nhwc", "float16"),  # EfficientNet-B0's first SE
            _workload(64, 32, 112, 1, "average", "nchw", "float16"),
            _workload(64, 1152, 7, 1, "average", "nchw", "float16"),  # its last
            _workload(16, 2048, 60, 6, "average", "nchw", "bfloat16"),  # PSPNet's pyramid
            _workload(16, 2048, 60, 3, "average", "nhwc", "bfloat16"),
            _workload(64, 512, 14, 7, "average", "nhwc", "float16"),  # VGG-16 at 448 pixels
            _workload(64, 256, 13, 6, "max", "nchw", "float32"),  # AlexNet at 256 pixels
            _workload(3, 17, 23, 7, "max", "nhwc", "float32"),
        ]

    def check_workload(self, workload: Workload) -> None:
        names = ("batch", "channels", "height", "width", "out_height", "out_width")
        check_dims(
            self.name,
            workload,
            sizes=dict.fromkeys(names, _MOST_SIZE),
            dtypes=DTYPES,
            choices={"operation": OPERATIONS, "layout": LAYOUTS},
        )
        pixels = workload.size("out_height") * workload.size("out_width")
        if workload.size("batch") * pixels > _MOST_PIXELS:
            raise WorkloadError(
                f"{self.name} [{workload.key}]: the result has more than {_MOST_PIXELS} pixels",
                "give a smaller batch",
            )

    def small_workload(self, workload: Workload) -> Workload:
        sizes = {"batch": 2, "channels": 5, "height": 11, "width": 13}
        out = {name: min(workload.size(name), 4) for name in ("out_height", "out_width")}
        return workload.with_dims(**sizes, **out)

    def make_inputs(self, workload: Workload, seed: int, device: str) -> Tensors:
        spec = _images(workload, "height", "width")
        x = random_tensor(spec, generator(seed, device), device)
        # A mean of 1, so that means of large windows are not rounding errors alone.
        return {"x": x if device == "meta" else x.add_(1.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": _images(workload, "out_height", "out_width")}

    def reference(self, workload: Workload, inputs: Tensors) -> Tensors:
        return {"out": _pooled(inputs["x"].double(), workload)}

    def tolerance(self, workload: Workload) -> Tolerance:
        relative = ROUNDING[workload.text("dtype")]
        return Tolerance(relative, relative)

    def cost(self, workload: Workload) -> Cost:
        images = workload.size("batch") * workload.size("channels")
        read = images * workload.size("height") * workload.size("width")
        written = images * workload.size("out_height") * workload.size("out_width")
        moved = float((read + written) * ELEMENT_BYTES[workload.text("dtype")])
        return Cost(flops=float(max(read, written)), bytes=moved)

    def space(self, workload: Workload) -> SearchSpace:
        pixels, channels = _sizes(workload)
        last = _channels_last(workload)
        high, wide = _window(workload)
        longest = min(64 if last else 1024, next_power_of_two(high * wide))
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_P", 1, min(32, next_power_of_two(pixels))),
            PowerOfTwo("BLOCK_R", 1, longest),
            PowerOfTwo("BLOCK_C", *_channel_blocks(last, next_power_of_two(channels))),
            PowerOfTwo("num_warps", 1, 8),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return _default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        pixels, channels = _sizes(workload)
        high, wide = _window(workload)
        names = ("height", "width", "out_height", "out_width")
        constants = {
            **{name.upper(): workload.size(name) for name in names},
            "WINDOW_H": high,
            "WINDOW_W": wide,
            "MAXIMUM": workload.text("operation") == "max",
            "CHANNELS_LAST": _channels_last(workload),
            **{name: config[name] for name in ("BLOCK_P", "BLOCK_R", "BLOCK_C", "num_warps")},
        }
        grid = (
            ceil_div(pixels, integer(config, "BLOCK_P"))
            * ceil_div(channels, integer(config, "BLOCK_C")),
        )
        arguments = (tensors["x"], tensors["out"], pixels, channels)
        return [Launch(adaptive_kernel, grid, arguments, constants)]

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Tensors], Tensors]]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return _pooled(x, workload)

        return {"eager": named("out", eager, "x"), "compile": named("out", compiled(eager), "x")}


def _workload(
    batch: int, channels: int, size: int, out: int, operation: str, layout: str, dtype: str
) -> Workload:
    """A workload of square images."""
    return Workload.of(
        batch=batch,
        channels=channels,
        height=size,
        width=size,
        out_height=out,
        out_width=out,
        operation=operation,
        layout=layout,
        dtype=dtype,
    )


def _channels_last(workload: Workload) -> bool:
    return workload.text("layout") == "nhwc"


def _images(workload: Workload, height: str, width: str) -> TensorSpec:
    sides = (workload.size(height), workload.size(width))
    batch, channels = workload.size("batch"), workload.size("channels")
    inner = (*sides, channels) if _channels_last(workload) else (channels, *sides)
    return TensorSpec((batch, *inner), workload.text("dtype"))


def _sizes(workload: Workload) -> tuple[int, int]:
    """Pixels and channels of a launch: one of the two covers all images."""
    pixels = workload.size("out_height") * workload.size("out_width")
    batch, channels = workload.size("batch"), workload.size("channels")
    if _channels_last(workload):
        return batch * pixels, channels
    return pixels, batch * channels


def _window(workload: Workload) -> tuple[int, int]:
    """Height and width of the largest window."""
    found = []
    for name in ("height", "width"):
        size, out = workload.size(name), workload.size(f"out_{name}")
        found.append(max(ceil_div((at + 1) * size, out) - at * size // out for at in range(out)))
    return found[0], found[1]


def _pooled(x: torch.Tensor, workload: Workload) -> torch.Tensor:
    """The result by plain torch, in the layout of x."""
    import torch

    last = _channels_last(workload)
    images = x.permute(0, 3, 1, 2) if last else x
    functions = torch.nn.functional
    largest = workload.text("operation") == "max"
    pool = functions.adaptive_max_pool2d if largest else functions.adaptive_avg_pool2d
    out: torch.Tensor = pool(images, (workload.size("out_height"), workload.size("out_width")))
    return out.permute(0, 2, 3, 1) if last else out


def _channel_blocks(last: bool, channels: int) -> tuple[int, int]:
    """The least and the most channels of a program."""
    return (min(16, channels), min(256, channels)) if last else (1, min(32, channels))


def _default_point(bound: BoundSpace) -> Config:
    """1,024 elements by 4 warps: neighbours in memory first, then the rest of a window."""
    most = {item.name: int(str(item.values()[-1])) for item in bound.parameters}
    left = 1024
    config: dict[str, int] = {}
    order = ("BLOCK_C", "BLOCK_R", "BLOCK_P")
    for name in order if _channels_last(bound.workload) else ("BLOCK_R", "BLOCK_P", "BLOCK_C"):
        widest = 64 if name == "BLOCK_C" else 256
        config[name] = min(left, most[name], widest)
        left //= config[name]
    for warps in (4, 2, 1):
        point = bound.complete({**config, "num_warps": warps})
        if bound.feasible(point):
            return point
    bound.require_feasible()
    return next(bound.enumerate())


def _tile(config: Config, workload: Workload) -> int:
    tile = integer(config, "BLOCK_P") * integer(config, "BLOCK_C")
    return tile * integer(config, "BLOCK_R")


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
)
