"""2-D pooling of images in either memory layout.

Memory-bound: the least traffic is one read of the images and one write of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import BLOCK_EXISTS, fits_registers, integer, keeps_threads_busy
from search_spaces.kernels.pooling.triton_kernels import pooling_kernel
from search_spaces.params import Parameter, PowerOfTwo
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

OPERATIONS, LAYOUTS = ("max", "average"), ("nhwc", "nchw")
#: The largest window, whose loads are all in one program's code, and the largest padding.
_MOST_WINDOW, _MOST_SIZE = 16, 65535
#: Elements that a thread holds at most and at least.
_MOST_HELD, _LEAST_HELD = 32, 1


class Pooling(Kernel):
    """Pooled windows of images; dims batch, channels, height, width, window, stride, padding,
    operation, layout and dtype.

    operation: max, or average, which counts the padding. layout: nhwc or nchw, of x and out alike.
    window, stride and padding are the same in both directions; padding is 0 up to half a window.
    """

    name = "pooling"
    edges = ALL_EDGES
    dims = Dims(
        batch=_MOST_SIZE,
        channels=_MOST_SIZE,
        height=_MOST_SIZE,
        width=_MOST_SIZE,
        window=_MOST_WINDOW,
        stride=_MOST_SIZE,
        padding=tuple(range(_MOST_WINDOW // 2 + 1)),
        operation=OPERATIONS,
        layout=LAYOUTS,
        dtype=DTYPES,
    )
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 64, 112, 112, 3, 2, 1, "max", "nhwc", "float16"),  # ResNet-50's stem
            (64, 64, 112, 112, 3, 2, 1, "max", "nchw", "float16"),
            (64, 2048, 7, 7, 7, 7, 0, "average", "nhwc", "float16"),  # ResNet-50's head
            (64, 256, 28, 28, 2, 2, 0, "average", "nchw", "float32"),  # DenseNet-121
            (32, 64, 224, 224, 2, 2, 0, "max", "nhwc", "bfloat16"),  # VGG-16
            (16, 192, 35, 35, 3, 1, 1, "average", "nchw", "bfloat16"),  # Inception-v3
            (3, 17, 61, 61, 5, 3, 2, "max", "nchw", "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        where, window = f"{self.name} [{workload.key}]", workload.size("window")
        if workload.size("padding") > window // 2:
            raise WorkloadError(f"{where}: padding is over half the window", "give less padding")
        if min(workload.size("height"), workload.size("width")) < window:
            raise WorkloadError(f"{where}: the window is larger than the image", "give less window")

    def small_workload(self, workload: Workload) -> Workload:
        window = workload.size("window")
        return workload.with_dims(batch=2, channels=5, height=window + 4, width=window + 9)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = _shape(workload, workload.size("height"), workload.size("width"))
        spec = workload.spec(*shape)
        return {"x": spec}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        shape = _shape(workload, *_pooled_size(workload))
        return {"out": workload.spec(*shape)}

    def flops(self, workload: Workload) -> float:
        height, width = _pooled_size(workload)
        images = workload.size("batch") * workload.size("channels")
        written = images * height * width
        return float(written * workload.size("window") ** 2)

    def space(self, workload: Workload) -> SearchSpace:
        pixels, channels = _sizes(workload)
        last = workload.text("layout") == "nhwc"
        # The dimension of neighbours in memory has the wider blocks.
        most_p, most_c = (64, 512) if last else (512, 32)
        most_p, most_c = (
            min(most_p, next_power_of_two(pixels)),
            min(most_c, next_power_of_two(channels)),
        )
        parameters: list[Parameter] = [
            PowerOfTwo("BLOCK_P", 1 if last else min(16, most_p), most_p),
            PowerOfTwo("BLOCK_C", min(16, most_c) if last else 1, most_c),
            PowerOfTwo("num_warps", 1, 8),
        ]
        return SearchSpace(parameters, CONSTRAINTS, kernel=self.name, admits=("BLOCK_P", "BLOCK_C"))

    def default_config(self, workload: Workload, device: Device) -> Config:
        """512 results by 4 warps: neighbours in memory first."""
        pixels, channels = _sizes(workload)
        if workload.text("layout") == "nhwc":
            block_c = min(64, next_power_of_two(channels))
            block_p = min(64, 512 // block_c, next_power_of_two(pixels))
        else:
            block_p = min(256, next_power_of_two(pixels))
            block_c = min(32, 512 // block_p, next_power_of_two(channels))
        warps = max(1, min(4, block_p * block_c // (device.warp_size or 32)))
        return {"BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": warps}

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        pixels, channels = _sizes(workload)
        out_height, out_width = _pooled_size(workload)
        constants = {
            "HEIGHT": workload.size("height"),
            "WIDTH": workload.size("width"),
            "OUT_HEIGHT": out_height,
            "OUT_WIDTH": out_width,
            "WINDOW": workload.size("window"),
            "STRIDE": workload.size("stride"),
            "PADDING": workload.size("padding"),
            "MAXIMUM": workload.text("operation") == "max",
            "CHANNELS_LAST": workload.text("layout") == "nhwc",
            "BLOCK_P": config["BLOCK_P"],
            "BLOCK_C": config["BLOCK_C"],
            "num_warps": config["num_warps"],
        }
        grid = (
            ceil_div(pixels, integer(config, "BLOCK_P")),
            ceil_div(channels, integer(config, "BLOCK_C")),
        )
        arguments = (tensors["x"], tensors["out"], pixels, channels)
        return [Launch(pooling_kernel, grid, arguments, constants)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return _pooled(x, workload)

        return eager


def _pooled_size(workload: Workload) -> tuple[int, int]:
    """Height and width of the result."""
    window, stride = workload.sizes("window", "stride")
    sides = (workload.size(name) + 2 * workload.size("padding") for name in ("height", "width"))
    height, width = ((side - window) // stride + 1 for side in sides)
    return height, width


def _shape(workload: Workload, height: int, width: int) -> tuple[int, ...]:
    batch, channels = workload.sizes("batch", "channels")
    if workload.text("layout") == "nhwc":
        return (batch, height, width, channels)
    return (batch, channels, height, width)


def _sizes(workload: Workload) -> tuple[int, int]:
    """Pixels and channels of a launch: one of the two covers all images."""
    height, width = _pooled_size(workload)
    batch, channels = workload.sizes("batch", "channels")
    if workload.text("layout") == "nhwc":
        return batch * height * width, channels
    return height * width, batch * channels


def _pooled(x: torch.Tensor, workload: Workload) -> torch.Tensor:
    """The result by plain torch, in the layout of x."""
    import torch

    last = workload.text("layout") == "nhwc"
    images = x.permute(0, 3, 1, 2) if last else x
    largest = workload.text("operation") == "max"
    pool = torch.nn.functional.max_pool2d if largest else torch.nn.functional.avg_pool2d
    window, stride, padding = workload.sizes("window", "stride", "padding")
    out: torch.Tensor = pool(images, window, stride, padding)
    return out.permute(0, 2, 3, 1) if last else out


def _tile(config: Config, workload: Workload) -> int:
    return integer(config, "BLOCK_P") * integer(config, "BLOCK_C")


CONSTRAINTS = (
    BLOCK_EXISTS,
    fits_registers(_tile, _MOST_HELD),
    keeps_threads_busy(_tile, _LEAST_HELD),
)
