# mypy: ignore-errors
"""A kernel that makes its tensor descriptors on the device, from Triton's allocator."""

import triton
import triton.language as tl


@triton.jit
def scaled_by_descriptor(x_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out = 2 * x of contiguous [M, N], one block per program."""
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    at = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(at, source.load(at) * 2)
