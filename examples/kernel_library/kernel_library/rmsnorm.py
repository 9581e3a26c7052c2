# mypy: ignore-errors
"""RMS norm over rows: out = x / sqrt(mean(x * x) + eps) * weight."""

import torch
import triton
import triton.language as tl
from tuner.runtime import autotune

CONFIGS = [
    triton.Config({"BLOCK": 1024}, num_warps=4),
    triton.Config({"BLOCK": 2048}, num_warps=8),
    triton.Config({"BLOCK": 4096}, num_warps=8),
    triton.Config({"BLOCK": 8192}, num_warps=16),
]


# With @triton.autotune here instead, and the same arguments, every new (rows, cols) would be
# tuned at its first launch. The tables are in `tables/` of this folder.
@autotune(CONFIGS, key=["rows", "cols"], kernel="rms_norm")
@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rows, cols: tl.constexpr, eps, BLOCK: tl.constexpr):
    """One program per row, which is read once if BLOCK holds it, else twice."""
    start = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    if cols <= BLOCK:
        x = tl.load(x_ptr + start + at, mask=at < cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + at, mask=at < cols, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / cols + eps)
        tl.store(out_ptr + start + at, x * scale * weight, mask=at < cols)
    else:
        squares = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, cols, BLOCK):
            here = first + at
            x = tl.load(x_ptr + start + here, mask=here < cols, other=0.0).to(tl.float32)
            squares += x * x
        scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / cols + eps)
        for first in range(0, cols, BLOCK):
            here = first + at
            x = tl.load(x_ptr + start + here, mask=here < cols, other=0.0).to(tl.float32)
            weight = tl.load(weight_ptr + here, mask=here < cols, other=0.0).to(tl.float32)
            tl.store(out_ptr + start + here, x * scale * weight, mask=here < cols)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMS norm of the last dim of x, which has as many elements as weight; float16, bfloat16 or
    float32. Raises ValueError for other shapes."""
    cols = x.shape[-1]
    if weight.shape != (cols,) or not weight.is_contiguous():
        raise ValueError(f"weight has shape {tuple(weight.shape)}; x needs a contiguous ({cols},)")
    flat = x.contiguous().view(-1, cols)
    out = torch.empty_like(flat)
    rows = flat.shape[0]
    if rows:
        rms_norm_kernel[(rows,)](flat, weight, out, rows, cols, eps)
    return out.view(x.shape)
