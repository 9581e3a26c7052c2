# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of the cross-entropy of a linear layer, forward and backward.

Logits are tiles of hidden[tokens, dim] @ weight[vocab, dim].T in float32. Forward, a program merges
its tiles into a running maximum and sum of exponentials of each token (Milakov and Gimelshein,
Online normalizer calculation for softmax, 2018); a second launch merges the programs' results.
Backward, the tiles are computed again, one slice of the vocabulary after the other: the gradient of
the slice's logits is stored in the dtype of the inputs and multiplied into both gradients. No
result depends on the order in which programs run.
"""

import triton
import triton.language as tl

from search_spaces.kernels.jitted_tiles import tile_at

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _logits(
    hidden_ptr, weight_ptr, token, word, DIM, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """hidden[token] @ weight[word].T in float32; token and word are row numbers in int64."""
    k = tl.arange(0, BLOCK_K)
    hidden_ptrs = hidden_ptr + (token * DIM)[:, None] + k[None, :]
    weight_ptrs = weight_ptr + (word * DIM)[None, :] + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, tl.cdiv(DIM, BLOCK_K)):
        if EVEN_K:
            hidden = tl.load(hidden_ptrs)
            weight = tl.load(weight_ptrs)
        else:
            in_k = k < DIM - step * BLOCK_K
            hidden = tl.load(hidden_ptrs, in_k[None, :], 0.0)
            weight = tl.load(weight_ptrs, in_k[:, None], 0.0)
        acc = tl.dot(hidden, weight, acc)
        hidden_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    return acc


@triton.jit
def partial_loss_kernel(
    hidden_ptr, weight_ptr, target_ptr, top_ptr, total_ptr, chosen_ptr, tokens, vocab, DIM, parts,
    ALIGN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STEPS: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Maximum, sum of exponentials and target's logit of BLOCK_M tokens over one part of the words.

    A part is STEPS blocks of BLOCK_N words. top and chosen are in base 2: logits times log2(e).
    top, total and chosen are [parts, tokens] in float32; chosen is 0 where the target is in another
    part. DIM is a multiple of ALIGN.
    """
    DIM = DIM // ALIGN * ALIGN
    row, part = tile_at(tl.program_id(0), tl.cdiv(tokens, BLOCK_M), parts, GROUP_M)
    token = row * BLOCK_M + tl.arange(0, BLOCK_M)
    # Tokens and words beyond the last read the last one; their results are not used.
    known = tl.minimum(token, tokens - 1).to(tl.int64)
    target = tl.load(target_ptr + known).to(tl.int32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    chosen = tl.zeros((BLOCK_M,), tl.float32)
    last = tl.minimum((part + 1) * STEPS, tl.cdiv(vocab, BLOCK_N))
    for block in tl.range(part * STEPS, last):
        word = block * BLOCK_N + tl.arange(0, BLOCK_N)
        some = tl.minimum(word, vocab - 1).to(tl.int64)
        logits = _logits(
            hidden_ptr, weight_ptr, known, some, DIM, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K
        )
        logits = tl.where((word < vocab)[None, :], logits * LOG2E, float("-inf"))
        # Each block has a word, so that no maximum stays infinite.
        higher = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(logits - higher[:, None]), 1)
        chosen += tl.sum(tl.where(word[None, :] == target[:, None], logits, 0.0), 1)
        top = higher
    at = part.to(tl.int64) * tokens + token
    inside = token < tokens
    tl.store(top_ptr + at, top, inside)
    tl.store(total_ptr + at, total, inside)
    tl.store(chosen_ptr + at, chosen, inside)


@triton.jit
def combine_loss_kernel(
    top_ptr, total_ptr, chosen_ptr, loss_ptr, lse_ptr, tokens, parts, BLOCK_P: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """loss and lse, the logarithm of the sum of exponentials, of BLOCK_T tokens from all parts."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = (token < tokens)[None, :]
    top = tl.full((BLOCK_P, BLOCK_T), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_P, BLOCK_T), tl.float32)
    chosen = tl.zeros((BLOCK_P, BLOCK_T), tl.float32)
    for first in tl.range(0, parts, BLOCK_P):
        part = first + tl.arange(0, BLOCK_P)
        at = part.to(tl.int64)[:, None] * tokens + token[None, :]
        mask = inside & (part < parts)[:, None]
        other = tl.load(top_ptr + at, mask, float("-inf"))
        higher = tl.maximum(top, other)
        # A lane without a part has the sum 0, and its maximum counts as 0.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2(top - base)
        total += tl.load(total_ptr + at, mask, 0.0) * tl.exp2(other - base)
        chosen += tl.load(chosen_ptr + at, mask, 0.0)
        top = higher
    highest = tl.max(top, 0)
    # Beyond the last token there is no maximum, nor a result.
    highest = tl.where(token < tokens, highest, 0.0)
    summed = tl.sum(total * tl.exp2(top - highest[None, :]), 0)
    lse = highest + tl.log2(tl.where(token < tokens, summed, 1.0))
    loss = lse - tl.sum(chosen, 0)
    tl.store(lse_ptr + token, lse * LN2, token < tokens)
    tl.store(loss_ptr + token, loss * LN2, token < tokens)


@triton.jit
def logit_gradient_kernel(
    hidden_ptr, weight_ptr, target_ptr, lse_ptr, grad_ptr, slice_ptr, first, tokens, vocab, DIM,
    ALIGN: tl.constexpr, SLICE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """slice[tokens, SLICE] = grad * (softmax(logits) - onehot(target)) of the words from `first`.

    One tile per program. Beyond the last word the slice is 0 up to a multiple of BLOCK_K, the
    blocks in which `hidden_gradient_kernel` reads it.
    """
    DIM = DIM // ALIGN * ALIGN
    words = tl.minimum(SLICE, vocab - first)
    cols = tl.cdiv(tl.cdiv(words, BLOCK_K) * BLOCK_K, BLOCK_N)
    row, col = tile_at(tl.program_id(0), tl.cdiv(tokens, BLOCK_M), cols, GROUP_M)
    token = row * BLOCK_M + tl.arange(0, BLOCK_M)
    at = col * BLOCK_N + tl.arange(0, BLOCK_N)
    known = tl.minimum(token, tokens - 1).to(tl.int64)
    word = first + tl.minimum(at, words - 1)
    logits = _logits(
        hidden_ptr, weight_ptr, known, word.to(tl.int64), DIM, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K
    )
    lse = tl.load(lse_ptr + known)
    target = tl.load(target_ptr + known).to(tl.int32)
    value = tl.exp2((logits - lse[:, None]) * LOG2E)
    value = tl.where(word[None, :] == target[:, None], value - 1.0, value)
    value = tl.where((at < words)[None, :], value * tl.load(grad_ptr + known)[:, None], 0.0)
    slice_ptrs = slice_ptr + (token.to(tl.int64) * SLICE)[:, None] + at[None, :]
    tl.store(slice_ptrs, value.to(slice_ptr.dtype.element_ty), (token < tokens)[:, None])


@triton.jit
def weight_gradient_kernel(
    slice_ptr, hidden_ptr, out_ptr, first, tokens, vocab, DIM, ALIGN: tl.constexpr,
    SLICE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_TOKENS: tl.constexpr, EVEN_DIM: tl.constexpr,
):  # fmt: skip
    """out[first + w] = slice[:, w].T @ hidden of the words of a slice, one tile per program."""
    DIM = DIM // ALIGN * ALIGN
    words = tl.minimum(SLICE, vocab - first)
    row, col = tile_at(tl.program_id(0), tl.cdiv(words, BLOCK_M), tl.cdiv(DIM, BLOCK_N), GROUP_M)
    word = row * BLOCK_M + tl.arange(0, BLOCK_M)
    at = col * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # A slice is a multiple of every block, so that columns beyond the last word exist.
    slice_ptrs = slice_ptr + (k * SLICE)[None, :] + word[:, None]
    hidden_ptrs = hidden_ptr + (k * DIM)[:, None] + at[None, :]
    in_dim = (at < DIM)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, tl.cdiv(tokens, BLOCK_K)):
        if EVEN_TOKENS:
            gradient = tl.load(slice_ptrs)
            hidden = tl.load(hidden_ptrs) if EVEN_DIM else tl.load(hidden_ptrs, in_dim, 0.0)
        else:
            in_k = k < tokens - step * BLOCK_K
            gradient = tl.load(slice_ptrs, in_k[None, :], 0.0)
            hidden = tl.load(hidden_ptrs, in_k[:, None] & in_dim, 0.0)
        acc = tl.dot(gradient, hidden, acc)
        slice_ptrs += BLOCK_K * SLICE
        hidden_ptrs += BLOCK_K * DIM
    out_ptrs = out_ptr + ((first + word).to(tl.int64) * DIM)[:, None] + at[None, :]
    inside = (word < words)[:, None] if EVEN_DIM else (word < words)[:, None] & in_dim
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def hidden_gradient_kernel(
    slice_ptr, weight_ptr, sum_ptr, out_ptr, first, tokens, vocab, DIM, ALIGN: tl.constexpr,
    SLICE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_DIM: tl.constexpr,
):  # fmt: skip
    """Add slice @ weight[first:] to sum[tokens, DIM], one tile per program, in float32.

    The first slice begins the sum, the last one writes it to `out` in its dtype.
    """
    DIM = DIM // ALIGN * ALIGN
    words = tl.minimum(SLICE, vocab - first)
    row, col = tile_at(tl.program_id(0), tl.cdiv(tokens, BLOCK_M), tl.cdiv(DIM, BLOCK_N), GROUP_M)
    token = row * BLOCK_M + tl.arange(0, BLOCK_M)
    at = col * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    known = tl.minimum(token, tokens - 1).to(tl.int64)
    slice_ptrs = slice_ptr + (known * SLICE)[:, None] + k[None, :]
    in_dim = (at < DIM)[None, :]
    inside = (token < tokens)[:, None] if EVEN_DIM else (token < tokens)[:, None] & in_dim
    # Offsets inside a tile fit into 32 bits, which halves the registers that they take.
    start = (row * BLOCK_M).to(tl.int64) * DIM
    out = (tl.arange(0, BLOCK_M) * DIM)[:, None] + at[None, :]
    acc = tl.load(sum_ptr + start + out, inside & (first > 0), 0.0)
    for step in tl.range(0, tl.cdiv(words, BLOCK_K)):
        # Beyond the last word the slice is 0, whatever the weights.
        gradient = tl.load(slice_ptrs)
        word = tl.minimum(k, words - 1 - step * BLOCK_K)
        block = weight_ptr + (first + step * BLOCK_K).to(tl.int64) * DIM
        weight_ptrs = block + (word * DIM)[:, None] + at[None, :]
        weight = tl.load(weight_ptrs) if EVEN_DIM else tl.load(weight_ptrs, in_dim, 0.0)
        acc = tl.dot(gradient, weight, acc)
        slice_ptrs += BLOCK_K
    if first + SLICE < vocab:
        tl.store(sum_ptr + start + out, acc, inside)
    else:
        tl.store(out_ptr + start + out, acc.to(out_ptr.dtype.element_ty), inside)
