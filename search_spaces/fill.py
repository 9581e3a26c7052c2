# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""A launch that fills a tensor with a number or with another tensor's values."""

import torch
import triton
import triton.language as tl

from search_spaces.kernel import Launch

_BLOCK = 1024


@triton.jit
def fill_kernel(out_ptr, elements, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.full((BLOCK,), VALUE, tl.float32)
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), at < elements)


@triton.jit
def copy_kernel(out_ptr, from_ptr, elements, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(from_ptr + at, at < elements)
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), at < elements)


def fill_launch(out: torch.Tensor, start: torch.Tensor | float) -> Launch:
    """Fill contiguous `out` with the number `start`, or with a tensor of as many elements."""
    elements = out.numel()
    grid = (triton.cdiv(elements, _BLOCK),)
    if isinstance(start, torch.Tensor):
        return Launch(copy_kernel, grid, (out, start, elements), {"BLOCK": _BLOCK})
    constants = {"VALUE": float(start), "BLOCK": _BLOCK}
    return Launch(fill_kernel, grid, (out, elements), constants)
