# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of reductions along one axis of a matrix, in float32 whatever the dtype.

A program keeps one partial result for each element of a tile [BLOCK_KEEP, BLOCK_RED] while it walks
along the axis, and reduces the tile once at the end. Extrema of NaN are NaN; of equal maxima,
`argmax` gives the first.
"""

import triton
import triton.language as tl


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _first_maximum(a, a_at, b, b_at):
    """The larger value and its place; of equal ones the earlier place."""
    first = (a > b) | ((a == b) & (a_at < b_at))
    return tl.where(first, a, b), tl.where(first, a_at, b_at)


@triton.jit
def _identity(OPERATION: tl.constexpr):
    if OPERATION == "max" or OPERATION == "argmax":
        value: tl.constexpr = float("-inf")
    elif OPERATION == "min":
        value: tl.constexpr = float("inf")
    else:
        value: tl.constexpr = 0.0
    return value


@triton.jit
def _merged(acc, x, OPERATION: tl.constexpr):
    if OPERATION == "max":
        acc = _maximum(acc, x)
    elif OPERATION == "min":
        acc = _minimum(acc, x)
    else:
        acc += x
    return acc


@triton.jit
def _along(tile, AXIS: tl.constexpr, OPERATION: tl.constexpr):
    if OPERATION == "max":
        result = tl.reduce(tile, AXIS, _maximum)
    elif OPERATION == "min":
        result = tl.reduce(tile, AXIS, _minimum)
    else:
        result = tl.sum(tile, AXIS)
    return result


@triton.jit
def reduction_kernel(
    x_ptr, out_ptr, value_ptr, index_ptr, keep, length, stride, AXIS: tl.constexpr,
    OPERATION: tl.constexpr, BLOCK_KEEP: tl.constexpr, BLOCK_RED: tl.constexpr,
    SPLITS: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Reduce x[rows, cols] along AXIS; `stride` is the elements between rows.

    keep: elements of the output; length: elements along the axis. Program (i, j) has outputs from
    i BLOCK_KEEP on and every SPLITS-th block along the axis from block j on. With SPLITS of 1 it
    writes `out`, else partial values (and, for argmax, their places) of split j to row j of `value`
    and `index`, each [SPLITS, keep].
    """
    identity: tl.constexpr = _identity(OPERATION)
    split = tl.program_id(1)
    kept = tl.program_id(0) * BLOCK_KEEP + tl.arange(0, BLOCK_KEEP)
    if AXIS == 1:
        shape: tl.constexpr = (BLOCK_KEEP, BLOCK_RED)
    else:
        shape: tl.constexpr = (BLOCK_RED, BLOCK_KEEP)
    acc = tl.full(shape, identity, tl.float32)
    places = tl.zeros(shape, tl.int32)
    blocks = tl.cdiv(length, BLOCK_RED)
    for block in tl.range(split, blocks, SPLITS, num_stages=LOAD_STAGES):
        along = block * BLOCK_RED + tl.arange(0, BLOCK_RED)
        if AXIS == 1:
            at = kept.to(tl.int64)[:, None] * stride + along[None, :]
            inside = (kept < keep)[:, None] & (along < length)[None, :]
            here = tl.broadcast_to(along[None, :], shape)
        else:
            at = along.to(tl.int64)[:, None] * stride + kept[None, :]
            inside = (along < length)[:, None] & (kept < keep)[None, :]
            here = tl.broadcast_to(along[:, None], shape)
        x = tl.load(x_ptr + at, inside, identity).to(tl.float32)
        if OPERATION == "argmax":
            places = tl.where(x > acc, here, places)
            acc = tl.maximum(acc, x)
        else:
            acc = _merged(acc, x, OPERATION)
    inside_kept = kept < keep
    if OPERATION == "argmax":
        value, place = tl.reduce((acc, places), AXIS, _first_maximum)
        if SPLITS == 1:
            tl.store(out_ptr + kept, place.to(tl.int64), inside_kept)
        else:
            tl.store(value_ptr + split * keep + kept, value, inside_kept)
            tl.store(index_ptr + split * keep + kept, place, inside_kept)
    else:
        value = _along(acc, AXIS, OPERATION)
        if SPLITS == 1:
            if OPERATION == "mean":
                value = value / length
            tl.store(out_ptr + kept, value.to(out_ptr.dtype.element_ty), inside_kept)
        else:
            tl.store(value_ptr + split * keep + kept, value, inside_kept)


@triton.jit
def combine_kernel(
    value_ptr, index_ptr, out_ptr, keep, length, OPERATION: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of all splits, loaded at once, in an order that repeats."""
    kept = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = kept < keep
    at = tl.arange(0, SPLITS)[:, None] * keep + kept[None, :]
    exist = tl.broadcast_to(inside[None, :], (SPLITS, BLOCK))
    values = tl.load(value_ptr + at, exist, 0.0)
    if OPERATION == "argmax":
        places = tl.load(index_ptr + at, exist, 0)
        _, place = tl.reduce((values, places), 0, _first_maximum)
        tl.store(out_ptr + kept, place.to(tl.int64), inside)
    else:
        result = _along(values, 0, OPERATION)
        if OPERATION == "mean":
            result = result / length
        tl.store(out_ptr + kept, result.to(out_ptr.dtype.element_ty), inside)
