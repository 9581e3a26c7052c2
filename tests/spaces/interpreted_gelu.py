"""Print the values of GELU for 16 bits at the float32 numbers of a file, as the kernels compute it.

Runs in Triton's interpreter: `TRITON_INTERPRET=1 python interpreted_gelu.py NUMBERS RESULTS`.
"""

# mypy: ignore-errors

import sys

import torch
import triton
import triton.language as tl

from search_spaces.kernels.activation.triton_kernels import activated


@triton.jit
def gelu_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, activated(tl.load(x_ptr + at), "gelu", True))


if __name__ == "__main__":
    numbers = torch.load(sys.argv[1])
    results = torch.empty_like(numbers)
    gelu_kernel[(numbers.numel() // 1024,)](numbers, results, 1024)
    torch.save(results, sys.argv[2])
