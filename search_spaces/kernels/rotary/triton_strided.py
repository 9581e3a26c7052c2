# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""The rotary embedding of heads at any distance, in one launch with one config; of no family."""

import triton
import triton.language as tl

_NUMBERS = ("tokens", "q_token", "q_head", "k_token", "k_head", "cos_token", "sin_token")


@triton.jit
def _rotate_head(
    x_ptr, out_ptr, cos, sin, at, tokens, head, heads, token_stride, head_stride,
    HALF: tl.constexpr, ALIGN: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    inside = (at < tokens)[:, None]
    from_ = tl.multiple_of(at.to(tl.int64) * token_stride, ALIGN)
    from_ = (from_ + tl.multiple_of(head.to(tl.int64) * head_stride, ALIGN))[:, None]
    to = ((at.to(tl.int64) * heads + head) * (2 * HALF))[:, None]
    dtype = out_ptr.dtype.element_ty
    if INTERLEAVED:
        whole = tl.arange(0, 2 * HALF)[None, :]
        x = tl.load(x_ptr + from_ + whole, inside, 0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, (x.shape[0], HALF, 2)))
        pairs = tl.join(a * cos - b * sin, b * cos + a * sin)
        tl.store(out_ptr + to + whole, tl.reshape(pairs, x.shape).to(dtype), inside)
    else:
        half = tl.arange(0, HALF)[None, :]
        a = tl.load(x_ptr + from_ + half, inside, 0.0).to(tl.float32)
        b = tl.load(x_ptr + from_ + half + HALF, inside, 0.0).to(tl.float32)
        tl.store(out_ptr + to + half, (a * cos - b * sin).to(dtype), inside)
        tl.store(out_ptr + to + half + HALF, (b * cos + a * sin).to(dtype), inside)


@triton.jit(do_not_specialize=_NUMBERS)
def strided_rotary_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, tokens, q_token, q_head, k_token, k_head,
    cos_token, sin_token, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_T: tl.constexpr, ALIGN: tl.constexpr, INTERLEAVED: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Rotate one head of BLOCK_T tokens, BACK: by the opposite angles; outputs are contiguous.

    Elements of a head are neighbours; tokens and heads are at the distances given, multiples of
    ALIGN elements. Programs are the heads of the queries, then of the keys, of each block.
    """
    # fmt: off
    block, head = tl.program_id(0) // (Q_HEADS + K_HEADS), tl.program_id(0) % (Q_HEADS + K_HEADS)
    at = block * BLOCK_T + tl.arange(0, BLOCK_T)
    half, inside = tl.arange(0, HALF)[None, :], (at < tokens)[:, None]
    cos_at = tl.multiple_of(at.to(tl.int64) * cos_token, ALIGN)[:, None] + half
    sin_at = tl.multiple_of(at.to(tl.int64) * sin_token, ALIGN)[:, None] + half
    cos = tl.load(cos_ptr + cos_at, inside, 0.0).to(tl.float32)
    sin = tl.load(sin_ptr + sin_at, inside, 0.0).to(tl.float32)
    if BACK:
        sin = -sin
    if head < Q_HEADS:
        _rotate_head(q_ptr, q_out_ptr, cos, sin, at, tokens, head, Q_HEADS, q_token, q_head, HALF,
                     ALIGN, INTERLEAVED)
    else:
        _rotate_head(k_ptr, k_out_ptr, cos, sin, at, tokens, head - Q_HEADS, K_HEADS, k_token,
                     k_head, HALF, ALIGN, INTERLEAVED)
    # fmt: on
