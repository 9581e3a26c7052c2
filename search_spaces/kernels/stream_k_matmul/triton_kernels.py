# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of stream-K products (Osama et al., Stream-K: Work-centric Parallel Decomposition
for Dense Matrix-Matrix Multiplication on the GPU, 2023).

Each program first computes whole tiles, the same number for all. The steps along K of the remaining
`streamed` tiles are one sequence, of which each program has an equal share: the end of a tile,
whole tiles, and the beginning of a tile. Parts of tiles go to scratch memory. A second launch adds
them in a fixed order, so that no program waits for another and results repeat.

A program has at most two parts: that which begins within a tile is in its place 0, that which
begins with a tile in its place 1.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import store_tile, tile_at


@triton.jit
def _streamed_tiles(tiles, programs, WAVES: tl.constexpr):
    """Tiles of the last, partial wave and of WAVES whole ones."""
    return tl.minimum(tiles % programs + WAVES * programs, tiles)


@triton.jit
def _pointer_sums(
    a_ptr, b_ptr, row, col, first, last, M, N, K, a_stride, b_stride, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = row + tl.arange(0, BLOCK_M)
    cols = col + tl.arange(0, BLOCK_N)
    ks = first * BLOCK_K + tl.arange(0, BLOCK_K)
    # Rows beyond the last read the last one: what they compute is not stored.
    a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
    b_rows = ks
    if WIDE:
        a_rows = a_rows.to(tl.int64)
        b_rows = b_rows.to(tl.int64)
        b_stride = tl.cast(b_stride, tl.int64)
    a_ptrs = a_ptr + ((a_rows * a_stride)[:, None] + ks[None, :])
    b_ptrs = b_ptr + ((b_rows * b_stride)[:, None] + cols[None, :])
    in_n = (cols < N)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(first, last):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs) if EVEN_N else tl.load(b_ptrs, in_n, 0.0)
        else:
            in_k = tl.arange(0, BLOCK_K) < K - step * BLOCK_K
            a = tl.load(a_ptrs, in_k[None, :], 0.0)
            b = tl.load(b_ptrs, in_k[:, None] & in_n, 0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * b_stride
    return acc


@triton.jit
def _tile_sums(
    a, b, row, col, first, last, M, N, K, a_stride, b_stride, DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of one tile over the steps from `first` to before `last`."""
    if DESCRIBED:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in tl.range(first, last):
            left = a.load([row, step * BLOCK_K])
            right = b.load([step * BLOCK_K, col])
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
    else:
        acc = _pointer_sums(a, b, row, col, first, last, M, N, K, a_stride, b_stride, BLOCK_M,
                            BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, WIDE, PRECISION)  # fmt: skip
    return acc


@triton.jit
def _store_sums(
    out, acc, row, col, M, N, out_stride, DESCRIBED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    if DESCRIBED:
        out.store([row, col], acc.to(out.dtype))
    else:
        rows = row + tl.arange(0, BLOCK_M)
        cols = col + tl.arange(0, BLOCK_N)
        store_tile(out, acc, rows, cols, M, N, out_stride, EVEN, WIDE)


@triton.jit
def stream_k_kernel(
    a, b, out, partial_ptr, M, N, K, a_stride, b_stride, out_stride, DESCRIBED: tl.constexpr,
    WAVES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    ALIGN_K: tl.constexpr, ALIGN_N: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = a @ b but for those tiles whose sums are in parts in partial[programs, 2, tile].

    a, b and out are row-major, as pointers or, with DESCRIBED, as descriptors in blocks of
    [BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N] and [BLOCK_M, BLOCK_N]. K and a_stride are multiples of
    ALIGN_K, N, b_stride and out_stride of ALIGN_N. WIDE: offsets do not fit into 32 bits.
    """
    # fmt: off
    N = N // ALIGN_N * ALIGN_N
    K = K // ALIGN_K * ALIGN_K
    a_stride = a_stride // ALIGN_K * ALIGN_K
    b_stride = b_stride // ALIGN_N * ALIGN_N
    out_stride = out_stride // ALIGN_N * ALIGN_N
    program, programs = tl.program_id(0), tl.num_programs(0)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    streamed = _streamed_tiles(tiles, programs, WAVES)
    whole = tiles - streamed

    for tile in tl.range(program, whole, programs, flatten=DESCRIBED):
        pid_m, pid_n = tile_at(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
        row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = _tile_sums(a, b, row, col, 0, steps, M, N, K, a_stride, b_stride, DESCRIBED,
                         BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, WIDE, PRECISION)
        _store_sums(out, acc, row, col, M, N, out_stride, DESCRIBED, BLOCK_M, BLOCK_N,
                    EVEN_M and EVEN_N, WIDE)

    total = streamed * steps
    share = tl.cdiv(total, programs)
    at = tl.minimum(program * share, total)
    end = tl.minimum(at + share, total)
    while at < end:
        first = at % steps
        last = tl.minimum(first + end - at, steps)
        pid_m, pid_n = tile_at(
            whole + at // steps, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
        )
        row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = _tile_sums(a, b, row, col, first, last, M, N, K, a_stride, b_stride, DESCRIBED,
                         BLOCK_M, BLOCK_N, BLOCK_K, EVEN_M, EVEN_N, EVEN_K, WIDE, PRECISION)
        if last - first == steps:
            _store_sums(out, acc, row, col, M, N, out_stride, DESCRIBED, BLOCK_M, BLOCK_N,
                        EVEN_M and EVEN_N, WIDE)
        else:
            place = 2 * program + tl.where(first == 0, 1, 0)
            part_ptr = partial_ptr + place.to(tl.int64) * (BLOCK_M * BLOCK_N)
            lines = tl.arange(0, BLOCK_M) * BLOCK_N
            tl.store(part_ptr + (lines[:, None] + tl.arange(0, BLOCK_N)[None, :]), acc)
        at += last - first
    # fmt: on


@triton.jit(do_not_specialize=["programs"])
def add_parts_kernel(
    partial_ptr, out_ptr, M, N, K, out_stride, programs, WAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ROWS: tl.constexpr, ALIGN_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add the parts of a streamed tile, in the order of K; ROWS rows of the tile per program.

    programs: of the first launch. Tiles that one program has computed as a whole are left alone.
    """
    N = N // ALIGN_N * ALIGN_N
    out_stride = out_stride // ALIGN_N * ALIGN_N
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    streamed = _streamed_tiles(tiles, programs, WAVES)
    at = tl.program_id(0)
    if at < streamed:
        share = tl.cdiv(streamed * steps, programs)
        begin = at * steps
        first = begin // share
        last = (begin + steps - 1) // share
        if first < last:
            lines = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
            cols = tl.arange(0, BLOCK_N)
            part_ptrs = partial_ptr + ((lines * BLOCK_N)[:, None] + cols[None, :])
            acc = tl.zeros((ROWS, BLOCK_N), tl.float32)
            for program in tl.range(first, last + 1):
                place = 2 * program + tl.where(program * share <= begin, 1, 0)
                acc += tl.load(part_ptrs + tl.cast(place, tl.int64) * (BLOCK_M * BLOCK_N))
            pid_m, pid_n = tile_at(
                tiles - streamed + at, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
            )
            rows, cols = pid_m * BLOCK_M + lines, pid_n * BLOCK_N + cols
            store_tile(out_ptr, acc, rows, cols, M, N, out_stride, False, WIDE)
