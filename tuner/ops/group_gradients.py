"""Gradients of group norm by one launch."""

from __future__ import annotations

import torch

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernels.group_norm.triton_gradients import group_gradients_kernel
from tuner.ops.problem import FLOATS, PLAIN
from tuner.ops.small_launches import SmallLaunch

#: Elements that a program works on at a time, and groups below which a GPU has too few programs.
_BLOCK, _FEWEST = 2048, 128
_launch = SmallLaunch(group_gradients_kernel, num_warps=8)


def group_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, ...] | None:
    """dx, dweight and dbias of contiguous dy and x[batch, channels, ...]; None without a launch.

    The sums of a program are added in a fixed order.
    """
    (batch, channels), size = x.shape[:2], x.numel()
    alike = dy.dtype == x.dtype == weight.dtype and x.dtype in FLOATS and type(x) in PLAIN
    if not alike or not size or batch * groups < _FEWEST:
        return None
    pixels, each = size // (batch * channels), channels // groups
    pixel_block = min(next_power_of_two(pixels), _BLOCK)
    constants = {"GROUPS": groups, "PER_GROUP": each, "PIXELS": pixels, "EPS": eps}
    constants |= {"BLOCK_C": min(next_power_of_two(each), _BLOCK // pixel_block)}
    dx, parts = torch.empty_like(x), x.new_empty((batch, channels, 2), dtype=torch.float32)
    given = [x, dy, weight.contiguous(), dx, parts]
    if not _launch(batch * groups, given, {**constants, "BLOCK_P": pixel_block}):
        return None
    sums = parts.sum(0).to(x.dtype)
    return dx, sums[:, 0], sums[:, 1]
