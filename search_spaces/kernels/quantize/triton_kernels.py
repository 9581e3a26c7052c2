# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of dynamic quantization, in float32 whatever the dtype.

A group is a stretch of LENGTH adjacent elements of a row with one scale: a whole row, or 128
elements. With m the largest magnitude of a group and L the largest code, the scale is s = m / L and
the code of x is x / s, to nearest, ties to even. Codes are of the dtype of `q_ptr`: int8,
float8e4nv, or uint8 for float8e4nv by integer instructions.
"""

import triton
import triton.language as tl

from search_spaces.kernels.float8 import HALF_SCALE, nearest_codes, scaled_halves

#: The least magnitude of a group, so that a group of zeros has a scale.
LEAST_AMAX = tl.constexpr(1e-12)
#: A float32 of this size has the integer part as its last bits.
_INTEGER_BASE = tl.constexpr(12582912.0)
_MAX_SIZE = tl.constexpr(2**31 - 1)


@triton.jit
def largest_of(sizes, AXIS: tl.constexpr):
    """The largest of magnitudes in float32 along an axis; NaN, whose bits are larger, of NaN."""
    return tl.max(sizes.to(tl.int32, bitcast=True), AXIS).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(amax, LARGEST: tl.constexpr):
    """Scale and its reciprocal."""
    amax = tl.maximum(amax, LEAST_AMAX, propagate_nan=tl.PropagateNan.ALL)
    scale = tl.div_rn(amax, tl.full(amax.shape, LARGEST, tl.float32))
    return scale, tl.div_rn(tl.full(amax.shape, 1.0, tl.float32), scale)


@triton.jit
def codes_of(x, scale, reciprocal, q_ptr):
    """x / scale as codes of the type of q_ptr.

    The quotient is corrected by its remainder and so correctly rounded (Markstein, Computation of
    elementary functions on the IBM RISC System/6000 processor, 1990), at two fused operations.
    """
    quotient = x * reciprocal
    # Of an infinite scale, the quotient of a number is 0 and needs no correction.
    remainder = tl.fma(-quotient, tl.where(scale == float("inf"), 0.0, scale), x)
    quotient = tl.fma(remainder, reciprocal, quotient)
    if q_ptr.dtype.element_ty == tl.int8:
        codes = (quotient + _INTEGER_BASE).to(tl.int32, bitcast=True).to(tl.int8)
    elif q_ptr.dtype.element_ty == tl.uint8:
        codes = nearest_codes(quotient)
    else:
        codes = quotient.to(q_ptr.dtype.element_ty)
    return codes


@triton.jit
def _group_step(
    x_ptr, q_ptr, scale_ptr, first, groups, COLS: tl.constexpr, LENGTH: tl.constexpr,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr, EVEN: tl.constexpr, CODES: tl.constexpr,
    LARGEST: tl.constexpr, load_policy: tl.constexpr,
):  # fmt: skip
    """GROUPS groups from group `first` on."""
    per_row: tl.constexpr = (COLS + LENGTH - 1) // LENGTH
    group = first + tl.arange(0, GROUPS)
    lanes = tl.arange(0, BLOCK)
    begin = group % per_row * LENGTH
    at = (group // per_row * COLS + begin)[:, None] + lanes[None, :]
    inside = (group < groups)[:, None] & (lanes[None, :] < LENGTH)
    inside = inside & (lanes[None, :] < (COLS - begin)[:, None])
    if EVEN:
        x = tl.load(x_ptr + at, eviction_policy=load_policy).to(tl.float32)
    else:
        x = tl.load(x_ptr + at, inside, 0.0, eviction_policy=load_policy).to(tl.float32)
    amax = largest_of(tl.abs(x), 1)
    if CODES:
        scale, reciprocal = scale_of(amax, LARGEST)
        codes = codes_of(x, scale[:, None], reciprocal[:, None], q_ptr)
        if EVEN:
            tl.store(q_ptr + at, codes)
        else:
            tl.store(q_ptr + at, codes, inside)
        amax = scale
    tl.store(scale_ptr + group, amax, group < groups)


@triton.jit
def group_kernel(
    x_ptr, q_ptr, scale_ptr, groups, COLS: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, EVEN: tl.constexpr, LOOP: tl.constexpr, LOAD_STAGES: tl.constexpr,
    CODES: tl.constexpr, LARGEST: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Scales, and with CODES codes, of groups that a program holds whole: x is read once.

    groups: of all rows. BLOCK is at least LENGTH. EVEN: there is nothing to mask. Without CODES,
    `scale_ptr` gets the largest magnitudes. With LOOP, a program takes several steps of GROUPS
    groups, the grid apart, LOAD_STAGES of them in flight. With STREAM, lines of x are marked to
    leave the caches first.
    """
    # fmt: off
    load_policy: tl.constexpr = "evict_first" if STREAM else ""
    start = tl.program_id(0).to(tl.int64) * GROUPS
    if LOOP:
        apart = tl.num_programs(0).to(tl.int64) * GROUPS
        for first in tl.range(start, groups, apart, num_stages=LOAD_STAGES):
            _group_step(x_ptr, q_ptr, scale_ptr, first, groups, COLS, LENGTH, BLOCK, GROUPS, EVEN,
                        CODES, LARGEST, load_policy)
    else:
        _group_step(x_ptr, q_ptr, scale_ptr, start, groups, COLS, LENGTH, BLOCK, GROUPS, EVEN,
                    CODES, LARGEST, load_policy)
    # fmt: on


@triton.jit
def row_kernel(
    x_ptr, q_ptr, scale_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr, LOAD_STAGES: tl.constexpr,
    CODES: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Scale, and with CODES codes, of one row per program in blocks; codes read the row again.

    The second time, the row is in the caches.
    """
    row = tl.program_id(0).to(tl.int64)
    # The counter of the loops goes up to COLS + BLOCK.
    begin = tl.cast(0, tl.int64) if COLS > _MAX_SIZE - BLOCK else 0
    lanes = tl.arange(0, BLOCK)
    x_ptr += row * COLS
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(begin, COLS, BLOCK, num_stages=LOAD_STAGES):
        x = tl.load(x_ptr + start + lanes, start + lanes < COLS, 0.0, eviction_policy="evict_last")
        x = tl.abs(x.to(tl.float32))
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
    # A row of the tile, so that scales have the same shape as in `group_kernel`.
    amax = largest_of(largest[None, :], 1)
    if CODES:
        scale, reciprocal = scale_of(amax, LARGEST)
        q_ptr += row * COLS
        for start in tl.range(begin, COLS, BLOCK, num_stages=LOAD_STAGES):
            at = start + lanes
            x = tl.load(x_ptr + at, at < COLS, 0.0, eviction_policy="evict_first").to(tl.float32)
            tl.store(q_ptr + at, codes_of(x, scale, reciprocal, q_ptr), at < COLS)
        amax = scale
    tl.store(scale_ptr + row + tl.arange(0, 1), amax)


@triton.jit
def amax_parts_kernel(
    x_ptr, part_ptr, elements, BLOCK: tl.constexpr, WIDE: tl.constexpr, LOAD_STAGES: tl.constexpr
):
    """part[p] = the largest magnitude of every P-th block of BLOCK elements from block p on.

    P: programs of the grid. WIDE: elements + BLOCK does not fit into 32 bits.
    """
    if WIDE:
        elements = tl.cast(elements, tl.int64)
    lanes = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    blocks = tl.cdiv(elements, BLOCK)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=LOAD_STAGES):
        at = tl.cast(block, tl.int64) * BLOCK + lanes
        x = tl.load(x_ptr + at, at < elements, 0.0)
        x = tl.abs(x.to(tl.float32))
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
    tl.store(part_ptr + tl.program_id(0), largest_of(largest, 0))


@triton.jit
def merge_parts_kernel(part_ptr, out_ptr, PARTS: tl.constexpr):
    """out[0] = the largest of PARTS magnitudes."""
    tl.store(out_ptr, largest_of(tl.load(part_ptr + tl.arange(0, PARTS)), 0))


@triton.jit
def tensor_codes_kernel(
    x_ptr, part_ptr, q_ptr, scale_ptr, elements, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    LARGEST: tl.constexpr, REVERSED: tl.constexpr, WIDE: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Codes of all elements with one scale, from the PARTS largest magnitudes of their parts.

    REVERSED visits the blocks from the last to the first: the caches hold what
    `amax_parts_kernel` has read last. WIDE: elements + BLOCK does not fit into 32 bits.
    """
    if WIDE:
        elements = tl.cast(elements, tl.int64)
    parts = tl.load(part_ptr + tl.arange(0, PARTS))
    scale, reciprocal = scale_of(largest_of(parts[None, :], 1), LARGEST)
    if tl.program_id(0) == 0:
        tl.store(scale_ptr + tl.arange(0, 1), scale)
    lanes = tl.arange(0, BLOCK)
    blocks = tl.cdiv(elements, BLOCK)
    for step in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=LOAD_STAGES):
        block = blocks - 1 - step if REVERSED else step
        at = tl.cast(block, tl.int64) * BLOCK + lanes
        x = tl.load(x_ptr + at, at < elements, 0.0, eviction_policy="evict_first").to(tl.float32)
        tl.store(q_ptr + at, codes_of(x, scale, reciprocal, q_ptr), at < elements)


@triton.jit
def dequantize_kernel(
    q_ptr, scale_ptr, out_ptr, pieces, COLS: tl.constexpr, LENGTH: tl.constexpr,
    PIECES: tl.constexpr, EVEN: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """out = code * scale for PIECES pieces of LENGTH adjacent elements of a row.

    pieces: of all rows. SCALES: "tensor" has one scale, "row" one for each row, "block128" one for
    each piece.
    """
    per_row: tl.constexpr = (COLS + LENGTH - 1) // LENGTH
    piece = tl.program_id(0).to(tl.int64) * PIECES + tl.arange(0, PIECES)
    row = piece // per_row
    begin = piece % per_row * LENGTH
    lanes = tl.arange(0, LENGTH)
    at = (row * COLS + begin)[:, None] + lanes[None, :]
    inside = (piece < pieces)[:, None] & (lanes[None, :] < (COLS - begin)[:, None])
    codes = tl.load(q_ptr + at) if EVEN else tl.load(q_ptr + at, inside, 0.0)
    if SCALES == "tensor":
        scale = tl.load(scale_ptr + tl.zeros((PIECES,), tl.int32))
    elif SCALES == "row":
        scale = tl.load(scale_ptr + row, piece < pieces, 0.0)
    else:
        scale = tl.load(scale_ptr + piece, piece < pieces, 0.0)
    if q_ptr.dtype.element_ty == tl.uint8:
        values = scaled_halves(codes).to(tl.float32) * HALF_SCALE
    else:
        values = codes.to(tl.float32)
    out = (values * scale[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + at, out)
    else:
        tl.store(out_ptr + at, out, inside)
