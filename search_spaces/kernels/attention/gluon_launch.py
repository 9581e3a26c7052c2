"""The launch of the Gluon kernel of the attention family; imported where a config asks for it."""

from __future__ import annotations

from math import e as euler
from math import log2, sqrt

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from search_spaces.block_sizes import ceil_div
from search_spaces.kernel import Launch
from search_spaces.kernels.attention.gluon_kernels import attention_hopper
from search_spaces.kernels.attention.space import CONSUMER_ROWS
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Workload
from search_spaces.tensors import Tensors, sm_count

#: By consumers: registers of each thread at the start, and those of a consumer's thread after the
#: loading warp, whose warp group keeps 24, has given up the rest. All together they are 64 K; two
#: programs with one consumer share a multiprocessor.
_REGISTERS = {1: (128, 232), 2: (168, 240), 3: (128, 160)}


def gluon_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """One launch over tiles of 64 queries for each consumer."""
    size, dim = workload.sizes("sequence", "head_dim")
    heads = workload.size("batch") * workload.size("heads")
    block_n, consumers = integer(config, "BLOCK_N"), integer(config, "consumers")
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    described = [
        TensorDescriptor.from_tensor(tensors[name].view(heads, size, dim), [1, rows, dim], layout)
        for name, rows in (
            ("q", CONSUMER_ROWS),
            ("k", block_n),
            ("v", block_n),
            ("out", CONSUMER_ROWS),
        )
    ]
    tiles = ceil_div(size, CONSUMER_ROWS * consumers) * heads
    resident = sm_count(tensors["q"]) * (2 if consumers == 1 else 1)
    programs = min(tiles, resident) if config["persistent"] else tiles
    at_start, of_consumer = _REGISTERS[consumers]
    constants = {
        "BLOCK_N": block_n,
        "CONSUMERS": consumers,
        "STAGES": integer(config, "num_stages"),
        "HEAD_DIM": dim,
        "CAUSAL": bool(workload["causal"]),
        "TAKE_TURNS": bool(config.get("take_turns", False)),
        "REGISTERS": of_consumer,
        "num_warps": 4,
        "maxnreg": at_start,
    }
    scale, turns = log2(euler) / sqrt(dim), ceil_div(tiles, programs)
    return Launch(attention_hopper, (programs,), (*described, heads, size, scale, turns), constants)
