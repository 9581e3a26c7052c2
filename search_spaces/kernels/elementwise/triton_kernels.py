# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
"""Triton kernels of element-wise operations, computed in float32 whatever the dtype."""

import triton
import triton.language as tl


@triton.jit
def _load(ptr, at, mask, MASKED: tl.constexpr, POLICY: tl.constexpr):
    if MASKED:
        loaded = tl.load(ptr + at, mask, 0.0, eviction_policy=POLICY)
    else:
        loaded = tl.load(ptr + at, eviction_policy=POLICY)
    return loaded.to(tl.float32)


@triton.jit
def _operate_on_block(
    a_ptr, b_ptr, c_ptr, out_ptr, block, elements, COLS: tl.constexpr, OPERATION: tl.constexpr,
    BLOCK: tl.constexpr, STREAM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    policy: tl.constexpr = "evict_first" if STREAM else ""
    store_policy: tl.constexpr = ".cs" if STREAM else ""
    # A large tensor has more than 2**31 elements.
    at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < elements
    out = _load(a_ptr, at, mask, MASKED, policy)
    if OPERATION == "add":
        out += _load(b_ptr, at, mask, MASKED, policy)
    elif OPERATION == "multiply":
        out *= _load(b_ptr, at, mask, MASKED, policy)
    elif OPERATION == "fma":
        b = _load(b_ptr, at, mask, MASKED, policy)
        out = tl.fma(out, b, _load(c_ptr, at, mask, MASKED, policy))
    elif OPERATION == "affine":
        # One scale and one shift per column, which stay in the caches.
        col = at % COLS
        out = tl.fma(out, _load(b_ptr, col, mask, MASKED, ""), _load(c_ptr, col, mask, MASKED, ""))
    else:
        tl.static_assert(OPERATION == "cast")
    out = out.to(out_ptr.dtype.element_ty)
    if MASKED:
        tl.store(out_ptr + at, out, mask, cache_modifier=store_policy)
    else:
        tl.store(out_ptr + at, out, cache_modifier=store_policy)


@triton.jit
def elementwise_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, elements, COLS: tl.constexpr, OPERATION: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, LOOP: tl.constexpr, STREAM: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One block of BLOCK elements per program or, with LOOP, every block the grid apart.

    Operands that an operation does not have are null. Only the last block is masked, so that all
    others are read in words of 16 bytes whatever the number of elements. With STREAM, lines of
    whole operands are marked to leave the caches first. WIDE: elements + BLOCK does not fit into
    32 bits.
    """
    # fmt: off
    if WIDE:
        elements = tl.cast(elements, tl.int64)
    blocks = tl.cdiv(elements, BLOCK)
    block = tl.program_id(0)
    if LOOP:
        for each in tl.range(block, blocks, tl.num_programs(0)):
            if EVEN or each < blocks - 1:
                _operate_on_block(a_ptr, b_ptr, c_ptr, out_ptr, each, elements, COLS, OPERATION,
                                  BLOCK, STREAM, False)
            else:
                _operate_on_block(a_ptr, b_ptr, c_ptr, out_ptr, each, elements, COLS, OPERATION,
                                  BLOCK, STREAM, True)
    elif EVEN or block < blocks - 1:
        _operate_on_block(a_ptr, b_ptr, c_ptr, out_ptr, block, elements, COLS, OPERATION,
                          BLOCK, STREAM, False)
    else:
        _operate_on_block(a_ptr, b_ptr, c_ptr, out_ptr, block, elements, COLS, OPERATION,
                          BLOCK, STREAM, True)
    # fmt: on
