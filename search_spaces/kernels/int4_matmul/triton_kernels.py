# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of out = a @ W^T with weights of four bits, dequantized in registers.

The tile is computed transposed, W @ a^T: tensor cores can take their first operand from registers,
where the weights are widened, and as few as 8 columns, where a decoder has few rows. A number q of
four bits becomes a float without a conversion: its bits, below the exponent of 128 (bfloat16) or
1024 (float16), are the number 128 + q or 1024 + q (Kim et al., Who Says Elephants Can't Run, 2022).
"""

import triton
import triton.language as tl

from search_spaces.kernels.scaled_tiles_triton import tile_at

#: Weights of a row that share scale and zero point, and the bytes that hold them.
_GROUP = tl.constexpr(128)
_BYTES = tl.constexpr(64)


def _instructions(pair: str, exponent: str, one: str, *, scaled: bool) -> str:
    """PTX for the four bytes of $4, whose eight numbers become $0 and $1 (low halves), $2 and $3.

    The bytes are placed below the exponents of two numbers at once. $5 and $6 are added to numbers,
    $7 and $8 multiply them. Results are moved last, since an output may share its register with an
    input.
    """
    halves = (("a", "$4", "0x4140"), ("b", "$4", "0x4342"), ("c", "h", "0x4140"))
    lines = [
        ".reg .b32 one, zero, h, a, b, c, d;",
        # Adding a negative zero changes no product.
        f"mov.b32 one, {one}; mov.b32 zero, 0x80008000;",
        "shr.b32 h, $4, 4;",
    ]
    for name, source, bytes_ in (*halves, ("d", "h", "0x4342")):
        offset, factor = ("$5", "$7") if bytes_ == "0x4140" else ("$6", "$8")
        lines += [
            f"prmt.b32 {name}, {source}, {exponent}, {bytes_};",
            f"and.b32 {name}, {name}, 0xFF0FFF0F;",
            f"fma.rn.{pair} {name}, {name}, one, {offset};",
        ]
        lines += [f"fma.rn.{pair} {name}, {name}, {factor}, zero;"] if scaled else []
    moves = [f"mov.b32 ${at}, {name};" for at, name in enumerate("abcd")]
    return "{ " + " ".join([*lines, *moves]) + " }"


_BFLOAT16 = tl.constexpr(_instructions("bf16x2", "0x43", "0x3F803F80", scaled=False))
_BFLOAT16_SCALED = tl.constexpr(_instructions("bf16x2", "0x43", "0x3F803F80", scaled=True))
_FLOAT16 = tl.constexpr(_instructions("f16x2", "0x64", "0x3C003C00", scaled=False))
_FLOAT16_SCALED = tl.constexpr(_instructions("f16x2", "0x64", "0x3C003C00", scaled=True))


@triton.jit
def _offset(q, dtype: tl.constexpr):
    """128 + q in bfloat16, or 1024 + q in float16; q: uint8 below 16."""
    base: tl.constexpr = 0x4300 if dtype == tl.bfloat16 else 0x6400
    return (q.to(tl.uint16) | base).to(dtype, bitcast=True)


@triton.jit
def _weights(
    w, zero, scale, dtype: tl.constexpr, SCALED: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """q - zero of the low and of the high half of each byte of w, with SCALED times `scale`.

    zero: as `_offset` gives it. PACKED: by instructions of CUDA for four bytes at a time.
    """
    if PACKED:
        if SCALED:
            asm: tl.constexpr = _BFLOAT16_SCALED if dtype == tl.bfloat16 else _FLOAT16_SCALED
            low, high = tl.inline_asm_elementwise(
                asm, "=r,=r,=r,=r,r,r,r,r,r", [w, -zero, scale], (tl.uint16, tl.uint16), True, 4
            )
        else:
            asm: tl.constexpr = _BFLOAT16 if dtype == tl.bfloat16 else _FLOAT16
            low, high = tl.inline_asm_elementwise(
                asm, "=r,=r,=r,=r,r,r,r", [w, -zero], (tl.uint16, tl.uint16), True, 4
            )
        low = low.to(dtype, bitcast=True)
        high = high.to(dtype, bitcast=True)
    else:
        low = _offset(w & 0xF, dtype) - zero
        high = _offset(w >> 4, dtype) - zero
        if SCALED:
            low *= scale
            high *= scale
    return low, high


@triton.jit
def _group_values(scale_ptr, zero_ptr, group, rows, groups, N, WIDE: tl.constexpr):
    """Scales and zero points of rows of W; those of the last group beyond it."""
    known = tl.minimum(group, groups - 1)
    at = (known.to(tl.int64) if WIDE else known) * N + rows
    return tl.load(scale_ptr + at), tl.load(zero_ptr + at)


@triton.jit
def int4_matmul_kernel(
    a_ptr, w_ptr, scale_ptr, zero_ptr, out_ptr, M, N, K, a_stride, out_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, ALIGN_N: tl.constexpr, WIDE: tl.constexpr,
    SCALE_SUMS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """One tile of out = a @ W^T per program; the second grid axis splits K into SPLIT_K parts.

    a[M, K] is row-major and K a multiple of 128. w[K / 128, N, 64] has 128 weights of a row in 64
    bytes: byte i has weight i in its low half and weight i + 64 in its high half. Weight q stands
    for (q - zero) * scale, with zero and scale [K / 128, N]. N and out_stride are multiples of
    ALIGN_N. With SPLIT_K > 1, out is float32 [SPLIT_K, M, N] of partial sums. SCALE_SUMS multiplies
    the sums of a group by its scale, else each weight. WIDE: offsets do not fit into 32 bits.
    """
    dtype: tl.constexpr = a_ptr.dtype.element_ty
    N = N // ALIGN_N * ALIGN_N
    out_stride = out_stride // ALIGN_N * ALIGN_N
    pid_m, pid_n = tile_at(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    split = tl.program_id(1)
    groups = K // _GROUP
    per_split = tl.cdiv(groups, SPLIT_K)
    first = split * per_split
    last = tl.minimum(first + per_split, groups)

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns beyond the last read the last one: what they compute is not stored.
    a_rows = rows if EVEN_M else tl.minimum(rows, M - 1)
    w_rows = cols if EVEN_N else tl.minimum(cols, N - 1)
    begin = first
    if WIDE:
        a_rows = a_rows.to(tl.int64)
        begin = first.to(tl.int64)
    lanes = tl.arange(0, _BYTES)
    a_ptrs = a_ptr + (a_rows * a_stride + begin * _GROUP)[:, None] + lanes[None, :]
    w_ptrs = w_ptr + ((begin * N + w_rows) * _BYTES)[:, None] + lanes[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    scale_next, zero_next = _group_values(scale_ptr, zero_ptr, first, w_rows, groups, N, WIDE)
    for step in tl.range(first, last):
        w = tl.load(w_ptrs)
        scale = scale_next[:, None]
        zero = _offset(zero_next, dtype)[:, None]
        # The next group's values are on their way while this group is multiplied.
        scale_next, zero_next = _group_values(
            scale_ptr, zero_ptr, step + 1, w_rows, groups, N, WIDE
        )
        low, high = _weights(w, zero, scale, dtype, not SCALE_SUMS, PACKED)
        a_low = tl.trans(tl.load(a_ptrs))
        a_high = tl.trans(tl.load(a_ptrs + _BYTES))
        if SCALE_SUMS:
            partial = tl.dot(high, a_high, tl.dot(low, a_low))
            acc += partial * scale.to(tl.float32)
        else:
            acc = tl.dot(low, a_low, acc)
            acc = tl.dot(high, a_high, acc)
        a_ptrs += _GROUP
        w_ptrs += N * _BYTES

    value = tl.trans(acc)
    if SPLIT_K > 1:
        out_ptr += split.to(tl.int64) * M * N
    at_rows = rows.to(tl.int64) if WIDE else rows
    out_ptrs = out_ptr + ((at_rows * out_stride)[:, None] + cols[None, :])
    value = value.to(out_ptr.dtype.element_ty)
    if EVEN_M and EVEN_N:
        tl.store(out_ptrs, value)
    else:
        tl.store(out_ptrs, value, (rows < M)[:, None] & (cols < N)[None, :])
