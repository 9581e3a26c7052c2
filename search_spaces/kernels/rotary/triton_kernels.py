# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernel of the rotary embedding (Su et al., RoFormer, 2021), in float32 whatever the dtype.

The elements (a, b) of a pair become (a cos - b sin, b cos + a sin). Pairs are elements i and
i + HALF of a head or, interleaved, 2 i and 2 i + 1.
"""

import triton
import triton.language as tl


@triton.jit
def _rotate_heads(
    x_ptr, out_ptr, cos, sin, token, first_head, tokens, heads, HALF: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, BLOCK_T * BLOCK_H)
    head = first_head + rows % BLOCK_H
    at = token + rows // BLOCK_H
    inside = ((at < tokens) & (head < heads))[:, None]
    row_at = (at.to(tl.int64) * heads + head)[:, None] * (2 * HALF)
    if INTERLEAVED:
        whole = row_at + tl.arange(0, 2 * HALF)[None, :]
        x = tl.load(x_ptr + whole, inside, 0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, (BLOCK_T * BLOCK_H, HALF, 2)))
        pairs = tl.join(a * cos - b * sin, b * cos + a * sin)
        out = tl.reshape(pairs, (BLOCK_T * BLOCK_H, 2 * HALF)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + whole, out, inside)
    else:
        first = row_at + tl.arange(0, HALF)[None, :]
        a = tl.load(x_ptr + first, inside, 0.0).to(tl.float32)
        b = tl.load(x_ptr + first + HALF, inside, 0.0).to(tl.float32)
        dtype = out_ptr.dtype.element_ty
        tl.store(out_ptr + first, (a * cos - b * sin).to(dtype), inside)
        tl.store(out_ptr + first + HALF, (b * cos + a * sin).to(dtype), inside)


@triton.jit
def rotary_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, tokens, Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of BLOCK_T tokens, of the queries first, then of the keys.

    q[tokens, Q_HEADS, 2 HALF] and k[tokens, K_HEADS, 2 HALF] are contiguous, cos and sin are
    [tokens, HALF]; the second axis of the grid has the blocks of all heads.
    """
    # fmt: off
    token, group = tl.program_id(0) * BLOCK_T, tl.program_id(1)
    q_groups: tl.constexpr = (Q_HEADS + BLOCK_H - 1) // BLOCK_H
    at = token + tl.arange(0, BLOCK_T * BLOCK_H) // BLOCK_H
    angle = at.to(tl.int64)[:, None] * HALF + tl.arange(0, HALF)[None, :]
    inside = (at < tokens)[:, None]
    cos = tl.load(cos_ptr + angle, inside, 0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, inside, 0.0).to(tl.float32)
    if group < q_groups:
        _rotate_heads(q_ptr, q_out_ptr, cos, sin, token, group * BLOCK_H, tokens, Q_HEADS, HALF,
                      BLOCK_T, BLOCK_H, INTERLEAVED)
    else:
        _rotate_heads(k_ptr, k_out_ptr, cos, sin, token, (group - q_groups) * BLOCK_H, tokens,
                      K_HEADS, HALF, BLOCK_T, BLOCK_H, INTERLEAVED)
    # fmt: on
