"""2-D pooling to a result of a given size, in either memory layout.

Memory-bound: the least traffic is one read of the images and one write of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from search_spaces.dims import Dims
from search_spaces.edges import ALL_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES
from search_spaces.kernels.limits import integer
from search_spaces.kernels.pooling.adaptive_space import (
    adaptive_space,
    channels_last,
    default_point,
    is_unrolled,
    programs,
    result_count,
    results,
    window,
)
from search_spaces.kernels.pooling.adaptive_triton import adaptive_kernel
from search_spaces.kernels.pooling.kernel import LAYOUTS, OPERATIONS
from search_spaces.kernels.reduction.combination import combining
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: Sides whose products with one another are 32-bit integers.
_MOST_SIZE = 32767
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
    edges = ALL_EDGES
    dims = Dims(
        batch=_MOST_SIZE,
        channels=_MOST_SIZE,
        height=_MOST_SIZE,
        width=_MOST_SIZE,
        out_height=_MOST_SIZE,
        out_width=_MOST_SIZE,
        operation=OPERATIONS,
        layout=LAYOUTS,
        dtype=DTYPES,
    )
    elementwise = 1

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (64, 2048, 7, 7, 1, 1, "average", "nhwc", "float16"),  # ResNet-50's head
            (64, 32, 112, 112, 1, 1, "average", "nhwc", "float16"),  # EfficientNet-B0's first SE
            (64, 32, 112, 112, 1, 1, "average", "nchw", "float16"),
            (64, 1152, 7, 7, 1, 1, "average", "nchw", "float16"),  # its last
            (16, 2048, 60, 60, 6, 6, "average", "nchw", "bfloat16"),  # PSPNet's pyramid
            (16, 2048, 60, 60, 3, 3, "average", "nhwc", "bfloat16"),
            (64, 512, 14, 14, 7, 7, "average", "nhwc", "float16"),  # VGG-16 at 448 pixels
            (64, 256, 13, 13, 6, 6, "max", "nchw", "float32"),  # AlexNet at 256 pixels
            (3, 17, 23, 23, 7, 7, "max", "nhwc", "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
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

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        # A mean of 1, so that means of large windows are not rounding errors alone.
        return {"x": replace(_images(workload, "height", "width"), mean=1.0)}

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": _images(workload, "out_height", "out_width")}

    def flops(self, workload: Workload) -> float:
        images = workload.size("batch") * workload.size("channels")
        read = images * workload.size("height") * workload.size("width")
        written = images * workload.size("out_height") * workload.size("out_width")
        return float(max(read, written))

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        if (splits := integer(config, "splits")) == 1:
            return {}
        return {"partial": workload.spec(splits, result_count(workload), dtype="float32")}

    def space(self, workload: Workload) -> SearchSpace:
        return adaptive_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(self.space(workload).bind(workload, device))

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        pixels, channels = results(workload)
        high, wide = window(workload)
        splits, partial = integer(config, "splits"), tensors.get("partial")
        names = ("height", "width", "out_height", "out_width")
        largest = workload.text("operation") == "max"
        constants = {
            **{name.upper(): workload.size(name) for name in names},
            "WINDOW_H": high,
            "WINDOW_W": wide,
            "MAXIMUM": largest,
            "CHANNELS_LAST": channels_last(workload),
            **{name: config[name] for name in ("BLOCK_P", "BLOCK_R", "BLOCK_C", "num_warps")},
            "SPLITS": splits,
            "UNROLL": is_unrolled(config, workload),
        }
        grid = (programs(config, workload), splits)
        arguments = (tensors["x"], tensors["out"], partial, pixels, channels)
        launches = [Launch(adaptive_kernel, grid, arguments, constants)]
        if splits > 1:
            # Means are of whole windows already: their parts are summed.
            operation = "max" if largest else "sum"
            count = result_count(workload)
            launches.append(combining(partial, None, tensors["out"], operation, splits, count))
        return launches

    def eager(self, workload: Workload) -> Callable[..., Any]:
        def eager(x: torch.Tensor) -> torch.Tensor:
            return _pooled(x, workload)

        return eager


def _images(workload: Workload, height: str, width: str) -> TensorSpec:
    sides = (workload.size(height), workload.size(width))
    batch, channels = workload.sizes("batch", "channels")
    inner = (*sides, channels) if channels_last(workload) else (channels, *sides)
    return workload.spec(batch, *inner)


def _pooled(x: torch.Tensor, workload: Workload) -> torch.Tensor:
    """The result by plain torch, in the layout of x."""
    import torch

    last = channels_last(workload)
    images = x.permute(0, 3, 1, 2) if last else x
    functions = torch.nn.functional
    largest = workload.text("operation") == "max"
    pool = functions.adaptive_max_pool2d if largest else functions.adaptive_avg_pool2d
    out: torch.Tensor = pool(images, (workload.size("out_height"), workload.size("out_width")))
    return out.permute(0, 2, 3, 1) if last else out
