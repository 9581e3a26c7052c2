"""The launch that both kernels of grouped attention share."""

from __future__ import annotations

from math import e as euler
from math import log2, sqrt
from typing import TYPE_CHECKING, Any

from triton.tools.tensor_descriptor import TensorDescriptor

from search_spaces.block_sizes import ceil_div, next_power_of_two
from search_spaces.kernel import Launch
from search_spaces.kernels.grouped_attention.space import packed_heads, problem_of
from search_spaces.kernels.grouped_attention.triton_kernels import grouped_attention_kernel
from search_spaces.kernels.limits import integer
from search_spaces.records import Config, Workload
from search_spaces.tensors import Tensors

if TYPE_CHECKING:
    import torch

#: The parts of a head dim: each is a power of two, as a block of Triton needs it.
PARTS = {64: (64, 0), 96: (64, 32), 128: (128, 0), 192: (128, 64), 256: (256, 0)}
HEAD_DIMS = tuple(PARTS)


def grouped_launch(workload: Workload, config: Config, tensors: Tensors) -> Launch:
    """Attention of q, k and v [batch, heads, length, dim] or, with dims tokens and sequences, of
    [tokens, heads, dim] and the bounds `cu_seqlens` of the sequences."""
    problem = problem_of(workload)
    block_m, block_n = integer(config, "BLOCK_M"), integer(config, "BLOCK_N")
    packed = packed_heads(config, problem)
    sequences = workload.size("sequences") if "sequences" in workload else 0
    rows = problem.rows * packed
    tiles = rows // block_m + sequences if sequences else ceil_div(rows, block_m)
    owners = problem.heads // packed
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "Q_HEADS": workload.size("q_heads"),
        "GROUP": problem.group,
        "PACKED": packed,
        **_parts("K", problem.head_dim),
        **_parts("V", problem.value_dim),
        "SEQUENCES": sequences,
        "SEQUENCE_BLOCK": next_power_of_two(sequences),
        "CAUSAL": problem.mask.causal,
        "WINDOW": problem.mask.window,
        "SPLIT": bool(config.get("split", False)),
        "HEAD_MAJOR": config["order"] == "head",
        "EVEN_M": not sequences and rows % block_m == 0,
        "EVEN_N": not sequences and problem.keys % block_n == 0,
        "DESCRIBED": config["loads"] == "descriptor",
        "SPECIALIZED": bool(config.get("specialize", False)),
        "num_warps": config["num_warps"],
        "num_stages": config["num_stages"],
    }
    arguments = (
        tensors["q"],
        *_sources(tensors["k"], problem.head_dim, sequences, config),
        *_sources(tensors["v"], problem.value_dim, sequences, config),
        tensors["out"],
        tensors["cu_seqlens"] if sequences else None,
        problem.queries,
        problem.keys,
        owners,
        tiles,
        log2(euler) / sqrt(problem.head_dim),
    )
    return Launch(grouped_attention_kernel, (owners * tiles,), arguments, constants)


def _parts(name: str, dim: int) -> dict[str, int]:
    main, rest = PARTS[dim]
    return {f"{name}_MAIN": main, f"{name}_REST": rest}


def _sources(tensor: torch.Tensor, dim: int, sequences: int, config: Config) -> tuple[Any, Any]:
    """Keys or values, by pointer or descriptor: for the main columns of each head and the rest."""
    if config["loads"] != "descriptor":
        return tensor, tensor
    main, rest = PARTS[dim]
    block_n = integer(config, "BLOCK_N")
    columns = tensor.shape[-2] * dim if sequences else dim
    matrix = tensor.view(-1, columns)
    described = TensorDescriptor.from_tensor(matrix, [block_n, main])
    return described, TensorDescriptor.from_tensor(matrix, [block_n, rest]) if rest else described
