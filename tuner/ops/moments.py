"""Mean and deviation of rows, which the gradients of normalisations need again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernels.norm_backward.triton_statistics import row_statistics_kernel
from tuner.ops.problem import FLOATS, PLAIN
from tuner.ops.small_launches import SmallLaunch

#: Elements that a program of the moments works on at a time.
_MOMENTS_BLOCK = 2048
_row_statistics = SmallLaunch(row_statistics_kernel)


def row_moments(x: torch.Tensor, eps: float, *, centred: bool) -> tuple[torch.Tensor, ...]:
    """rstd of every row and, where centred, its mean, in float32 or float64."""
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    if not torch.is_grad_enabled() and type(x) in PLAIN and x.dtype in FLOATS and x.numel():
        found = _launch(rows, eps, centred)
        if found is not None:
            return found
    wide = torch.promote_types(x.dtype, torch.float32)
    if centred:
        variance, mean = torch.var_mean(rows.to(wide), 1, correction=0)
        return (variance + eps).rsqrt(), mean
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=wide)
    return ((norms * norms / x.shape[-1] + eps).rsqrt(),)


def _launch(x: torch.Tensor, eps: float, centred: bool) -> tuple[torch.Tensor, ...] | None:
    """The same by one launch; None where there is none."""
    if not x.is_contiguous():
        return None
    rows, cols = x.shape
    rstd = x.new_empty(rows, dtype=torch.float32)
    found = (rstd, torch.empty_like(rstd)) if centred else (rstd,)
    each, constants = _constants(cols, eps, centred)
    arguments: list[torch.Tensor | int] = [x, rstd, found[-1], rows]
    return found if _row_statistics(-(-rows // each), arguments, constants) else None


@lru_cache(1024)
def _constants(cols: int, eps: float, centred: bool) -> tuple[int, dict[str, Any]]:
    """Rows of each program, and the constants of the kernel."""
    block = min(next_power_of_two(cols), _MOMENTS_BLOCK)
    each = _MOMENTS_BLOCK // block
    return each, {"COLS": cols, "EPS": eps, "CENTRED": centred, "ROWS": each, "BLOCK": block}
