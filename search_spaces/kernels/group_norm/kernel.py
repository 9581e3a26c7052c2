"""Group norm of images in either memory layout.

Memory-bound: the least traffic is one read and one write of the images. A group that is read twice
comes from a cache the second time, if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.block_sizes import ceil_div
from search_spaces.dims import Dims, number_of
from search_spaces.edges import NORM_EDGES
from search_spaces.errors import WorkloadError
from search_spaces.kernel import Kernel, Launch
from search_spaces.kernels.dtypes import DTYPES, ELEMENT_BYTES
from search_spaces.kernels.group_norm.space import (
    WORD_BYTES,
    block,
    by_channel,
    default_point,
    group_space,
    is_last,
    length,
    per_group,
    programs,
    width,
)
from search_spaces.kernels.group_norm.triton_kernels import group_norm_kernel, merge_channels_kernel
from search_spaces.kernels.limits import MAX_SIZE, integer
from search_spaces.records import Config, Device, TensorSpec, Workload
from search_spaces.space import SearchSpace
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

LAYOUTS = ("nchw", "nhwc")
DEFAULT_EPS = 1e-5
#: Elements of an image: places in it are 32-bit integers.
_MOST_ELEMENTS = 2**30
#: Channels of a group that are neighbours in memory: a tile has all of them.
_MOST_PER_GROUP = 4096
#: Moments, and scale and shift, of one element.
_FLOPS = 7.0
#: Moments that a warp merges.
_MERGED_BY_WARP = 512


class GroupNorm(Kernel):
    """Group norm of images x with weight[channels] and bias[channels]; dims batch, channels,
    pixels, groups, layout, dtype and, optionally, eps (1e-5).

    layout: nchw is x[batch, channels, pixels], nhwc x[batch, pixels, channels], of x and out alike.
    The channels of an image are normalised in groups of channels / groups.

    Groups can be held in registers where they are small enough (passes 1). Others are read twice
    (passes 2), and several programs share a group where groups are few (splits). Channels that come
    last can be read by themselves, in whole words, and their moments be merged (passes 3).
    """

    name = "group_norm"
    edges = NORM_EDGES
    dims = Dims(
        batch=int, channels=int, pixels=int, groups=int, layout=LAYOUTS, dtype=DTYPES, eps=float
    )
    elementwise = 2

    def workloads(self) -> Sequence[Workload]:
        return self.dims.workloads(
            (2, 320, 4096, 32, "nchw", "float16"),  # Stable Diffusion 1.5, 64 x 64
            (2, 1280, 256, 32, "nchw", "float16"),  # Stable Diffusion 1.5, 16 x 16
            (2, 320, 16384, 32, "nhwc", "float16"),  # Stable Diffusion XL, 128 x 128
            (2, 640, 4096, 32, "nhwc", "bfloat16"),  # Stable Diffusion XL, 64 x 64
            (1, 128, 1048576, 32, "nchw", "bfloat16"),  # its decoder, 1024 x 1024
            (1, 512, 16384, 32, "nhwc", "float32"),  # its decoder, 128 x 128
            (64, 256, 3136, 32, "nchw", "float32"),  # ResNet-50 with group norm, 56 x 56
            (64, 2048, 49, 32, "nhwc", "bfloat16"),  # ResNet-50 with group norm, 7 x 7
            (3, 36, 1215, 4, "nchw", "float32"),
        )

    def check_workload(self, workload: Workload) -> None:
        super().check_workload(workload)
        where, channels = f"{self.name} [{workload.key}]", workload.size("channels")
        if channels % workload.size("groups"):
            raise WorkloadError(f"{where}: groups does not divide channels", "give groups=32")
        if channels * workload.size("pixels") > _MOST_ELEMENTS:
            raise WorkloadError(
                f"{where}: an image has more than the {_MOST_ELEMENTS} elements this kernel takes",
                "give fewer pixels, or another kernel",
            )
        if is_last(workload) and per_group(workload) > _MOST_PER_GROUP:
            raise WorkloadError(
                f"{where}: a group has more than the {_MOST_PER_GROUP} channels of a tile",
                "give more groups, or layout=nchw",
            )
        if workload.size("batch") * workload.size("groups") > MAX_SIZE:
            raise WorkloadError(
                f"{where}: there are more than {MAX_SIZE} groups in all", "give a smaller batch"
            )

    def small_workload(self, workload: Workload) -> Workload:
        # Words of 16 bytes have one channel each, or several, as in the workload.
        pixels = 248 if workload.size("pixels") % 8 == 0 else 247
        return workload.with_dims(batch=2, channels=30, groups=3, pixels=pixels)

    def inputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {
            # Not centred at zero, so that a variant without the subtraction of the mean fails.
            "x": workload.spec(*_shape(workload), mean=1.0, scale=2.0),
            "weight": workload.spec("channels", mean=1.0, scale=0.25),
            "bias": workload.spec("channels"),
        }

    def outputs(self, workload: Workload) -> Mapping[str, TensorSpec]:
        return {"out": workload.spec(*_shape(workload))}

    def scratch(self, workload: Workload, config: Config) -> Mapping[str, TensorSpec]:
        splits, batch = integer(config, "splits"), workload.size("batch")
        names, groups = ("mean", "spread"), workload.size("groups")
        if by_channel(config):
            parts = workload.spec(batch, "channels", splits, dtype="float32")
            whole = workload.spec(batch, groups, dtype="float32")
            return {**dict.fromkeys(names, parts), "group_mean": whole, "group_scale": whole}
        if splits == 1:
            return {}
        return dict.fromkeys(names, workload.spec(batch, groups, splits, dtype="float32"))

    def flops(self, workload: Workload) -> float:
        elements = workload.size("batch") * workload.size("channels") * workload.size("pixels")
        return _FLOPS * elements

    def space(self, workload: Workload) -> SearchSpace:
        return group_space(workload, self.name)

    def default_config(self, workload: Workload, device: Device) -> Config:
        return default_point(workload, device)

    def launches(self, workload: Workload, config: Config, tensors: Tensors) -> list[Launch]:
        names, moments = ("x", "weight", "bias", "out"), ("mean", "spread")
        grid = (programs(config, workload), integer(config, "splits"))
        constants = _constants(workload, config)

        def launch(phase: str, given: tuple[str, str]) -> Launch:
            arguments = (*(tensors[name] for name in names), *(tensors.get(name) for name in given))
            return Launch(group_norm_kernel, grid, arguments, {**constants, "PHASE": phase})

        if by_channel(config):
            whole = ("group_mean", "group_scale")
            merged = {name: constants[name] for name in ("PIXELS", "PART", "SPLITS", "EPS")}
            wide, splits = width(workload), integer(config, "splits")
            warps = max(1, min(16, wide * splits // _MERGED_BY_WARP))
            merged |= {"PER_GROUP": per_group(workload), "WIDTH": wide, "num_warps": warps}
            arguments = tuple(tensors[name] for name in (*moments, *whole))
            groups = (workload.size("batch") * workload.size("groups"),)
            merge = Launch(merge_channels_kernel, groups, arguments, merged)
            return [launch("sum", moments), merge, launch("apply", whole)]
        if integer(config, "splits") > 1:
            return [launch("sum", moments), launch("write", moments)]
        return [launch("held" if config["passes"] == 1 else "whole", moments)]

    def eager(self, workload: Workload) -> Callable[..., Any]:
        return _torch(workload)


def _constants(workload: Workload, config: Config) -> dict[str, Any]:
    """Constants of the launches over x; groups of one channel where channels are by themselves."""
    last, splits, places = is_last(workload), integer(config, "splits"), length(workload)
    groups, each, wide = workload.size("groups"), integer(config, "BLOCK_G"), width(workload)
    alike = wide == per_group(workload)
    if by_channel(config):
        groups, each, wide, alike = workload.size("channels"), integer(config, "BLOCK_C"), 1, True
    blocked = block(config, workload)
    part = ceil_div(places, blocked * splits) * blocked
    lanes_exist = not last or (alike and groups % each == 0)
    return {
        "CHANNELS": workload.size("channels"),
        "PIXELS": workload.size("pixels"),
        "GROUPS": groups,
        "WIDTH": wide,
        "BLOCK": blocked,
        "BLOCK_G": each,
        "VEC": WORD_BYTES // ELEMENT_BYTES[workload.text("dtype")],
        "PART": part,
        "SPLITS": splits,
        "SHARED": per_group(workload) if by_channel(config) else 1,
        "LAST": last,
        "EVEN": lanes_exist and part * splits == places,
        "STREAM": config["stream"],
        "EPS": number_of(workload, "eps", DEFAULT_EPS),
        "LOAD_STAGES": config.get("block_stages", 1),
        "num_warps": config["num_warps"],
    }


def _shape(workload: Workload) -> tuple[int, int, int]:
    channels, pixels = workload.sizes("channels", "pixels")
    image = (pixels, channels) if is_last(workload) else (channels, pixels)
    return (workload.size("batch"), *image)


def _torch(workload: Workload) -> Callable[..., torch.Tensor]:
    """The operation as users of torch write it, on images in the layout of x."""
    groups, last = workload.size("groups"), is_last(workload)
    eps = number_of(workload, "eps", DEFAULT_EPS)

    def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        import torch

        # torch knows channels that come last in images of four dimensions only.
        images = x[:, :, None, :].permute(0, 3, 1, 2) if last else x
        out = torch.nn.functional.group_norm(images, groups, weight, bias, eps)
        return out.permute(0, 2, 3, 1).reshape(x.shape) if last else out

    return group_norm
