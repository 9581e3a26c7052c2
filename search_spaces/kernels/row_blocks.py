# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
"""Triton functions for rows that are read in blocks.

Rows of COLS elements follow one another without gaps. VEC elements are 16 bytes. A row is read
from the last multiple of VEC that is not behind its first element, and places in a row are counted
from there. Blocks of BLOCK elements therefore begin at multiples of 16 bytes, whatever COLS is: all
blocks of a row but the first and the last are read in whole words and without a mask. The first of
them may begin with elements of the row before.

A row's words that it shares with others, at its two ends, are its edges: a tile [2, VEC] read and
written singly, where all blocks are to have whole words alone.

Where programs share a row, each has a part of PART places, a multiple of BLOCK.
"""

import triton
import triton.language as tl


@triton.jit
def row_start(row, COLS: tl.constexpr, VEC: tl.constexpr):
    """The element from which a row's places are counted, of all rows; `row` is int64."""
    start = row * COLS
    if COLS % VEC != 0:
        start = start // VEC * VEC
    return tl.multiple_of(start, VEC)


@triton.jit
def row_skip(row, COLS: tl.constexpr, VEC: tl.constexpr):
    """The place of a row's first element, below VEC; `row` is int64."""
    return ((row % VEC) * (COLS % VEC) % VEC).to(tl.int32)


@triton.jit
def part_bounds(row, split, COLS: tl.constexpr, VEC: tl.constexpr, PART: tl.constexpr):
    """Places of a part: where its first block begins, of its first element, and behind its last."""
    begin = split * PART
    if COLS % VEC == 0:
        high = tl.multiple_of(tl.minimum(begin + PART, COLS), VEC)
        low = begin
    else:
        skip = row_skip(row, COLS, VEC)
        high = tl.minimum(begin + PART, skip + COLS)
        low = tl.maximum(begin, skip)
    return begin, low, high


@triton.jit
def lanes(BLOCK: tl.constexpr, VEC: tl.constexpr):
    """Places in a block as a tile [BLOCK / VEC, VEC]: a thread has whole rows of this tile."""
    return (tl.arange(0, BLOCK // VEC) * VEC)[:, None] + tl.arange(0, VEC)[None, :]


@triton.jit
def between(at, low, high, HEAD: tl.constexpr):
    """Whether places are those of a part; without HEAD none is before its first."""
    inside = at < high
    if HEAD:
        inside = inside & (at >= low)
    return inside


@triton.jit
def edge_places(low, high, VEC: tl.constexpr):
    """Places of the words at both ends of a part, and those that are its edges, [2, VEC]."""
    end = tl.arange(0, 2)[:, None]
    word = tl.where(end == 0, low // VEC, high // VEC)
    # Both ends may be in one word.
    real = (end == 0) & (low % VEC != 0) | (end == 1) & (high % VEC != 0)
    real = real & ((end == 0) | (word != low // VEC) | (low % VEC == 0))
    at = word * VEC + tl.arange(0, VEC)[None, :]
    return at, real & (at >= low) & (at < high)


@triton.jit
def load_edges(ptr, start, low, high, VEC: tl.constexpr):
    """The numbers of the edges in float32, [2, VEC]; 0 elsewhere."""
    at, real = edge_places(low, high, VEC)
    return tl.load(ptr + start + at, real, 0.0).to(tl.float32)


@triton.jit
def write_edges(ptr, start, low, high, x, VEC: tl.constexpr):
    """Write the edges."""
    at, real = edge_places(low, high, VEC)
    tl.store(ptr + start + at, x.to(ptr.dtype.element_ty), real)
