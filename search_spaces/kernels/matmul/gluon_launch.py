"""The launch of matmul's Gluon kernel; imported where a config asks for that dialect."""

from __future__ import annotations

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.kernel import Launch
from search_spaces.kernels.limits import integer
from search_spaces.kernels.matmul.gluon_kernels import gluon_matmul_kernel
from search_spaces.kernels.matmul.gluon_space import consumer_rows
from search_spaces.records import Config, Workload
from search_spaces.tensors import Tensors, sm_count


def gluon_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """One program per multiprocessor, or per tile where there are fewer tiles."""
    block_m, block_n, block_k = (integer(config, f"BLOCK_{dim}") for dim in "MNK")
    rows, parts = consumer_rows(config), integer(config, "parts")
    sizes = tuple(workload.size(dim) for dim in "MNK")
    blocks = {"a": [rows, block_k], "b": [block_k, block_n], "out": [rows, block_n // parts]}
    # Rows of a block are whole multiples of 128 bytes.
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    described = (
        TensorDescriptor.from_tensor(tensors[name], block, layout) for name, block in blocks.items()
    )
    tiles = ceil_div(sizes[0], block_m) * ceil_div(sizes[1], block_n)
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP_M": integer(config, "GROUP_M"),
        "STAGES": integer(config, "num_stages"),
        "PARTS": parts,
        "num_warps": 4,
    }
    grid = (min(tiles, sm_count(tensors["a"])),)
    return Launch(gluon_matmul_kernel, grid, (*described, *sizes), constants)
