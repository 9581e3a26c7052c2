# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the backward pass of layer norm and RMS norm, in float32 whatever the dtype.

Notation, for a row of x and dy: z = (x - mean) rstd, g = weight dy, <.> the mean over the row. Then
dx = (g - z <z g> - <g>) rstd, and over all rows dweight = sum(dy z), dbias = sum(dy). RMS norm
(CENTRED is false) has neither mean nor <g> nor dbias.

Every program adds up dweight and dbias of its own rows and leaves them in a row of scratch; the
last launch adds these rows, in a fixed order.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(
    x_ptr, dy_ptr, mean_ptr, rstd_ptr, row, at, rows, inside, EVEN: tl.constexpr,
    CENTRED: tl.constexpr,
):  # fmt: skip
    """z and dy of a tile, both 0 outside, and rstd of its rows."""
    real = row < rows
    if EVEN:
        x = tl.load(x_ptr + at).to(tl.float32)
        dy = tl.load(dy_ptr + at).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
    else:
        x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, inside, 0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, real, 0.0)
    if CENTRED:
        x -= (tl.load(mean_ptr + row) if EVEN else tl.load(mean_ptr + row, real, 0.0))[:, None]
    # A z outside the tile meets dy = 0 wherever it is used.
    return x * rstd[:, None], dy, rstd


@triton.jit
def _store_parts(weight_part_ptr, bias_part_ptr, dweight, dbias, at, inside, CENTRED: tl.constexpr):
    tl.store(weight_part_ptr + at, dweight, inside)
    if CENTRED:
        tl.store(bias_part_ptr + at, dbias, inside)


@triton.jit
def held_backward_kernel(
    x_ptr, dy_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, weight_part_ptr, bias_part_ptr, rows,
    COLS: tl.constexpr, BLOCK: tl.constexpr, ROWS_PER_STEP: tl.constexpr, EVEN: tl.constexpr,
    ALIGN: tl.constexpr, CENTRED: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """Groups of ROWS_PER_STEP rows, the grid apart, LOAD_STAGES of them in flight.

    x, dy and dx are contiguous; BLOCK is the power of two that holds a row of COLS, which is a
    multiple of ALIGN. EVEN: there is nothing to mask. Program p leaves its sums in row p of
    `weight_part` and `bias_part`, each [programs, COLS].
    """
    cols = tl.arange(0, BLOCK)
    in_row = cols < COLS
    weight = tl.load(weight_ptr + cols, in_row, 0.0).to(tl.float32)
    dweight = tl.zeros((ROWS_PER_STEP, BLOCK), tl.float32)
    dbias = tl.zeros((ROWS_PER_STEP, BLOCK), tl.float32)
    groups = tl.cdiv(rows, ROWS_PER_STEP)
    # fmt: off
    for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=LOAD_STAGES):
        row = group * ROWS_PER_STEP + tl.arange(0, ROWS_PER_STEP)
        at = tl.multiple_of(row.to(tl.int64) * COLS, ALIGN)[:, None] + cols[None, :]
        inside = (row < rows)[:, None] & in_row[None, :]
        z, dy, rstd = _tile(x_ptr, dy_ptr, mean_ptr, rstd_ptr, row, at, rows, inside, EVEN, CENTRED)
        dweight += dy * z
        g = dy * weight[None, :]
        dx = g - z * (tl.sum(z * g, 1) * (1.0 / COLS))[:, None]
        if CENTRED:
            dbias += dy
            dx -= (tl.sum(g, 1) * (1.0 / COLS))[:, None]
        dx = (dx * rstd[:, None]).to(dx_ptr.dtype.element_ty)
        if EVEN:
            tl.store(dx_ptr + at, dx)
        else:
            tl.store(dx_ptr + at, dx, inside)
    part = tl.multiple_of(tl.program_id(0) * COLS, ALIGN) + cols
    _store_parts(weight_part_ptr, bias_part_ptr, tl.sum(dweight, 0), tl.sum(dbias, 0), part, in_row,
                 CENTRED)
    # fmt: on


@triton.jit
def row_means_kernel(
    x_ptr, dy_ptr, weight_ptr, mean_ptr, rstd_ptr, product_ptr, gradient_ptr, COLS: tl.constexpr,
    BLOCK: tl.constexpr, ALIGN: tl.constexpr, CENTRED: tl.constexpr, LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """product[r] = <z g> and gradient[r] = <g> of one row per program, read in blocks of BLOCK."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.multiple_of(row * COLS, ALIGN)
    lanes = tl.arange(0, BLOCK)
    mean = tl.load(mean_ptr + row) if CENTRED else 0.0
    product = tl.zeros((BLOCK,), tl.float32)
    gradient = tl.zeros((BLOCK,), tl.float32)
    for block in tl.range(0, COLS, BLOCK, num_stages=LOAD_STAGES):
        cols = block + lanes
        inside = cols < COLS
        x = tl.load(x_ptr + start + cols, inside, 0.0, eviction_policy="evict_last")
        dy = tl.load(dy_ptr + start + cols, inside, 0.0, eviction_policy="evict_last")
        weight = tl.load(weight_ptr + cols, inside, 0.0).to(tl.float32)
        g = dy.to(tl.float32) * weight
        product += (x.to(tl.float32) - mean) * g
        gradient += g
    rstd = tl.load(rstd_ptr + row)
    tl.store(product_ptr + row, tl.sum(product, 0) * rstd * (1.0 / COLS))
    if CENTRED:
        tl.store(gradient_ptr + row, tl.sum(gradient, 0) * (1.0 / COLS))


@triton.jit
def tile_backward_kernel(
    x_ptr, dy_ptr, weight_ptr, mean_ptr, rstd_ptr, product_ptr, gradient_ptr, dx_ptr,
    weight_part_ptr, bias_part_ptr, rows, COLS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, EVEN: tl.constexpr, ALIGN: tl.constexpr, CENTRED: tl.constexpr,
    LOAD_STAGES: tl.constexpr,
):  # fmt: skip
    """BLOCK_C columns of groups of BLOCK_R rows, as many apart as axis 1 of the grid has programs.

    product, gradient: the means of `row_means_kernel`. The rest is as in `held_backward_kernel`.
    """
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_row = cols < COLS
    weight = tl.load(weight_ptr + cols, in_row, 0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    dbias = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    # fmt: off
    for group in tl.range(tl.program_id(1), tl.cdiv(rows, BLOCK_R), tl.num_programs(1),
                          num_stages=LOAD_STAGES):
        row = group * BLOCK_R + tl.arange(0, BLOCK_R)
        real = row < rows
        at = tl.multiple_of(row.to(tl.int64) * COLS, ALIGN)[:, None] + cols[None, :]
        inside = real[:, None] & in_row[None, :]
        z, dy, rstd = _tile(x_ptr, dy_ptr, mean_ptr, rstd_ptr, row, at, rows, inside, EVEN, CENTRED)
        dweight += dy * z
        dx = dy * weight[None, :] - z * tl.load(product_ptr + row, real, 0.0)[:, None]
        if CENTRED:
            dbias += dy
            dx -= tl.load(gradient_ptr + row, real, 0.0)[:, None]
        dx = (dx * rstd[:, None]).to(dx_ptr.dtype.element_ty)
        if EVEN:
            tl.store(dx_ptr + at, dx)
        else:
            tl.store(dx_ptr + at, dx, inside)
    part = tl.multiple_of(tl.program_id(1) * COLS, ALIGN) + cols
    _store_parts(weight_part_ptr, bias_part_ptr, tl.sum(dweight, 0), tl.sum(dbias, 0), part, in_row,
                 CENTRED)
    # fmt: on


@triton.jit
def _column_sums(
    part_ptr, out_ptr, parts, cols, COLS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in tl.range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        inside = (part < parts)[:, None] & (cols < COLS)[None, :]
        total += tl.load(part_ptr + part[:, None] * COLS + cols[None, :], inside, 0.0)
    tl.store(out_ptr + cols, tl.sum(total, 0).to(out_ptr.dtype.element_ty), cols < COLS)


@triton.jit
def add_parts_kernel(
    weight_part_ptr, bias_part_ptr, dweight_ptr, dbias_ptr, parts, COLS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """dweight and dbias from the sums of `parts` programs, BLOCK_C columns per program."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    _column_sums(weight_part_ptr, dweight_ptr, parts, cols, COLS, BLOCK_P, BLOCK_C)
    if CENTRED:
        _column_sums(bias_part_ptr, dbias_ptr, parts, cols, COLS, BLOCK_P, BLOCK_C)
