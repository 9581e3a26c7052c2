"""The launch of fp8_matmul's Gluon kernel; imported where a config asks for that dialect."""

from __future__ import annotations

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.kernel import Launch
from search_spaces.kernels.fp8_matmul.gluon_kernels import gluon_fp8_matmul_kernel
from search_spaces.kernels.fp8_matmul.gluon_space import consumer_rows, promotes
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Workload
from search_spaces.tensors import Tensors, sm_count


def gluon_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """One program per multiprocessor, or per tile where there are fewer tiles."""
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    rows, parts = consumer_rows(config), integer(config, "parts")
    # name: (block, bits of an element); rows of a block are whole multiples of 128 bytes.
    blocks = {
        "a": ([rows, block_k], 8),
        "b": ([block_n, block_k], 8),
        "out": ([rows, block_n // parts], 16),
    }
    described = (
        TensorDescriptor.from_tensor(
            tensors[name],
            block,
            NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=bits, rank=2),
        )
        for name, (block, bits) in blocks.items()
    )
    m, n, _ = workload.sizes("M", "N", "K")
    tiles = ceil_div(m, block_m) * ceil_div(n, block_n)
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP_M": integer(config, "GROUP_M"),
        "STAGES": integer(config, "num_stages"),
        "PARTS": parts,
        "LEAD": integer(config, "lead"),
        "MODE": workload.text("scales"),
        "PROMOTE": promotes(config, workload),
        "num_warps": 4,
    }
    grid = (min(tiles, sm_count(tensors["a"])),)
    scales = (tensors["a_scale"], tensors["b_scale"])
    return Launch(
        gluon_fp8_matmul_kernel,
        grid,
        (*described, *scales, *workload.sizes("M", "N", "K")),
        constants,
    )
