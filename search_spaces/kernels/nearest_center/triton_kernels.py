# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the nearest center: products of tiles by tensor cores and a running minimum.

|x - c|^2 = |x|^2 + |c|^2 - 2 x.c, and |x|^2 is the same for all centers, so that the place of the
least |c|^2 - 2 x.c is the result. Scores never leave the registers. Of equal scores, the first
center's counts.
"""

import triton
import triton.language as tl

from search_spaces.kernels.pairwise_triton import row_norms, row_tile


@triton.jit
def _scores(
    x_ptr, c_ptr, norm_ptr, x_at, x, block, centers, DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GIVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """|c|^2 - 2 x.c of a block of centers; x is the tile of points where BLOCK_K holds it whole."""
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    # Centres beyond the last are the last one again, and their scores are infinite.
    c_at = tl.minimum(n, centers - 1) * DIM
    if BLOCK_K >= DIM:
        c = row_tile(c_ptr, c_at, 0, DIM, BLOCK_K)
        products = tl.dot(x, tl.trans(c), input_precision=PRECISION)
        if not GIVEN:
            norm = row_norms(c)
    else:
        products = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        norm = tl.zeros((BLOCK_N,), tl.float32)
        for start in tl.range(0, DIM, BLOCK_K):
            part = row_tile(x_ptr, x_at, start, DIM, BLOCK_K)
            c = row_tile(c_ptr, c_at, start, DIM, BLOCK_K)
            products = tl.dot(part, tl.trans(c), products, input_precision=PRECISION)
            if not GIVEN:
                norm += row_norms(c)
    if GIVEN:
        norm = tl.load(norm_ptr + tl.minimum(n, centers - 1))
    norm = tl.where(n < centers, norm, float("inf"))
    return norm[None, :] - 2.0 * products


@triton.jit
def nearest_center_kernel(
    x_ptr, c_ptr, norm_ptr, index_ptr, distance_ptr, value_ptr, place_ptr, rows, centers,
    DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GIVEN: tl.constexpr, RECOMPUTE: tl.constexpr, PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Nearest of the contiguous c[centers, DIM] to BLOCK_M rows of x[rows, DIM], and |x - c|^2.

    GIVEN: norm[centers] holds the squared norms of the centers. RECOMPUTE: the distance is computed
    from the coordinates of the chosen center, so that nothing cancels. PAIRS: the least score of a
    block is found with its place, else its place is that of the first score equal to it. The second
    axis of the grid has SPLITS ranges of centers; with more than one, the result of range s goes to
    row s of value and place[SPLITS, rows].
    """
    # fmt: off
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    # Rows beyond the last read the last one: what they compute is not stored.
    x_at = tl.minimum(row, rows - 1).to(tl.int64) * DIM
    if BLOCK_K >= DIM:
        x = row_tile(x_ptr, x_at, 0, DIM, BLOCK_K)
        if not RECOMPUTE:
            x_norm = row_norms(x)
    else:
        x = 0.0
    blocks = tl.cdiv(centers, BLOCK_N)
    each = tl.cdiv(blocks, SPLITS)
    split = tl.program_id(1)
    least = tl.full((BLOCK_M,), float("inf"), tl.float32)
    place = tl.zeros((BLOCK_M,), tl.int32)
    for block in tl.range(split * each, tl.minimum((split + 1) * each, blocks)):
        scores = _scores(x_ptr, c_ptr, norm_ptr, x_at, x, block, centers, DIM, BLOCK_M, BLOCK_N,
                         BLOCK_K, GIVEN, PRECISION)
        if PAIRS:
            lower, at = tl.min(scores, 1, return_indices=True)
        else:
            lower = tl.min(scores, 1)
            lanes = tl.arange(0, BLOCK_N)[None, :]
            at = tl.min(tl.where(scores == lower[:, None], lanes, BLOCK_N), 1)
        place = tl.where(lower < least, block * BLOCK_N + at, place)
        least = tl.minimum(lower, least)
    # fmt: on
    if RECOMPUTE:
        distance = tl.zeros((BLOCK_M,), tl.float32)
        chosen = place * DIM
        for start in tl.range(0, DIM, BLOCK_K, num_stages=1):
            there = row_tile(c_ptr, chosen, start, DIM, BLOCK_K).to(tl.float32)
            here = row_tile(x_ptr, x_at, start, DIM, BLOCK_K).to(tl.float32)
            distance += row_norms(here - there)
        # A range without a center has chosen none.
        distance = tl.where(least < float("inf"), distance, float("inf"))
    else:
        if BLOCK_K < DIM:
            x_norm = tl.zeros((BLOCK_M,), tl.float32)
            for start in tl.range(0, DIM, BLOCK_K, num_stages=1):
                x_norm += row_norms(row_tile(x_ptr, x_at, start, DIM, BLOCK_K))
        distance = tl.maximum(least + x_norm, 0.0)
    if SPLITS > 1:
        partial = split.to(tl.int64) * rows + row
        tl.store(value_ptr + partial, distance, row < rows)
        tl.store(place_ptr + partial, place, row < rows)
    else:
        tl.store(index_ptr + row, place.to(tl.int64), row < rows)
        tl.store(distance_ptr + row, distance, row < rows)


@triton.jit
def nearest_of_splits_kernel(
    value_ptr, place_ptr, index_ptr, distance_ptr, rows, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The nearest center of all SPLITS ranges, the first of equal ones."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    least = tl.load(value_ptr + row, inside, 0.0)
    place = tl.load(place_ptr + row, inside, 0)
    for split in tl.static_range(1, SPLITS):
        partial = row.to(tl.int64) + split * rows
        value = tl.load(value_ptr + partial, inside, 0.0)
        place = tl.where(value < least, tl.load(place_ptr + partial, inside, 0), place)
        least = tl.minimum(value, least)
    tl.store(index_ptr + row, place.to(tl.int64), inside)
    tl.store(distance_ptr + row, least, inside)
