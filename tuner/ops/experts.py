"""A mixture-of-experts layer: two products of each token with the matrices of its experts.

A slot is one expert of one token: slot s is of token s // top_k. Both products take the slots in
order of their experts, and where those of each expert end (`slots_by_expert`). A kernel wants them
in blocks of one expert, whose size is its config's: a launch before each product makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch.nn import functional

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernel import Launch
from search_spaces.kernels.limits import integer
from search_spaces.kernels.moe_matmul.routing import (
    block_places,
    most_blocks,
    slots_by_expert,
)
from search_spaces.records import Config, TensorSpec, Value
from tuner.ops import decompositions
from tuner.ops.operator import Operator
from tuner.ops.overriding import overridable
from tuner.ops.problem import HALVES, Preparation, Problem, dtype_name, runs_on


# -- the problem of a kernel -----------------------------------------------------------------------
def _problem(
    gemm: str,
    x: torch.Tensor,
    w: torch.Tensor,
    ids: torch.Tensor,
    slots: torch.Tensor,
    ends: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> Problem | None:
    tensors = {"x": x, "w": w, "ids": ids, "sorted_slots": slots, "ends": ends}
    dtypes = [x.dtype, x.dtype, *[torch.int32] * 3]
    if weights is not None:
        tensors, dtypes = {**tensors, "weights": weights}, [*dtypes, torch.float32]
    given = tensors.values()
    if x.dtype not in HALVES or [each.dtype for each in given] != dtypes:
        return None
    if (x.ndim, w.ndim, ids.ndim) != (2, 3, 2) or not all(each.is_contiguous() for each in given):
        return None
    (tokens, top_k), (experts, cols, depth) = ids.shape, w.shape
    rows = tokens if weights is None else tokens * top_k
    if x.shape != (rows, depth) or slots.shape != (tokens * top_k,) or ends.shape != (experts,):
        return None
    if cols % 2 if weights is None else weights.shape != ids.shape:
        return None
    hidden, inner = (depth, cols // 2) if weights is None else (cols, depth)
    shape = (tokens * top_k, inner) if weights is None else (tokens, top_k, hidden)
    dims: dict[str, Value] = {"tokens": tokens, "experts": experts, "top_k": top_k}
    dims |= {"hidden": hidden, "intermediate": inner, "gemm": gemm, "dtype": dtype_name(x)}
    order = Preparation(_blocks_of, _order_slots)
    return Problem("moe_matmul", dims, tensors, {"out": shape}, preparation=order)


def _blocks_of(config: Config, tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    """The slots in blocks of the size that the config has, and the expert of each block."""
    block = integer(config, "BLOCK_SIZE_M")
    blocks = most_blocks(len(tensors["sorted_slots"]), len(tensors["ends"]), block)
    return {
        f"order_{block}": TensorSpec((blocks * block,), "int32"),
        f"experts_{block}": TensorSpec((blocks,), "int32"),
    }


def _order_slots(config: Config, tensors: Mapping[str, torch.Tensor]) -> Launch:
    from search_spaces.kernels.moe_matmul.triton_order import order_slots_kernel

    block, slots, ends = integer(config, "BLOCK_SIZE_M"), tensors["sorted_slots"], tensors["ends"]
    order, experts = tensors[f"order_{block}"], tensors[f"experts_{block}"]
    constants = {"BLOCK_SIZE_M": block, "EXPERTS": next_power_of_two(len(ends))}
    arguments = slots, ends, order, experts, len(slots), len(ends)
    return Launch(order_slots_kernel, (len(experts),), arguments, constants)


# -- torch's functions -----------------------------------------------------------------------------
def _multiply(rows: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows in order of their experts, each times the matrix w[expert] of [cols, depth].

    Without torch's grouped products, it copies at most two matrices for each expert.
    """
    (slots, depth), (experts, cols, _) = rows.shape, w.shape
    even = cols % 8 == 0 and depth % 8 == 0
    # On other GPUs, grouped products wait for the device.
    if rows.dtype is w.dtype is torch.bfloat16 and slots and even and runs_on(rows, 9, 10):
        found: torch.Tensor = functional.grouped_mm(rows, w.transpose(1, 2), offs=ends)
        return found
    block = max(-(-slots // experts), 1)
    blocks = most_blocks(slots, experts, block)
    place, of_block = block_places(ends, slots, block, blocks)
    padded = rows.new_zeros((blocks * block, depth)).index_copy(0, place, rows)
    products = padded.view(blocks, block, depth) @ w[of_block.clamp(min=0)].transpose(1, 2)
    return products.reshape(blocks * block, cols)[place]


def _to_slots(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows in order of their experts, in the order of slots."""
    return torch.zeros_like(rows).index_copy(0, slots.long(), rows)


def _gate_up_of_torch(
    x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, slots: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    gate, value = _multiply(x[slots // ids.shape[1]], w, ends).chunk(2, -1)
    return _to_slots(functional.silu(gate) * value, slots)


def _down_of_torch(
    x: torch.Tensor,
    w: torch.Tensor,
    ids: torch.Tensor,
    slots: torch.Tensor,
    ends: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    out = _to_slots(_multiply(x[slots], w, ends), slots).view(*ids.shape, w.shape[1])
    return (out * weights[..., None]).to(x.dtype)


_gate_up = Operator[torch.Tensor](
    "moe_gate_up",
    "(Tensor x, Tensor w, Tensor ids, Tensor slots, Tensor ends) -> Tensor",
    _gate_up_of_torch,
    partial(_problem, "gate_up_silu"),
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)
_down = Operator[torch.Tensor](
    "moe_down",
    "(Tensor x, Tensor w, Tensor ids, Tensor slots, Tensor ends, Tensor weights) -> Tensor",
    _down_of_torch,
    partial(_problem, "down"),
    autocast="lower",
    keeps=["weights"],
    least_gain=decompositions.UNFUSED,
)


@overridable()
def moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """A layer of experts: the sum over the experts e of each token, times their weights, of
    (silu(x @ gate[e].T) * (x @ up[e].T)) @ down[e].T.

    x[tokens, hidden]; gate_up[experts, 2 * intermediate, hidden], gates before values;
    down[experts, hidden, intermediate]; weights[tokens, top_k] (float32) and ids[tokens, top_k]
    (int32), as `topk_routing` gives them. Ids are not checked. With gradients, torch runs. Autocast
    lowers all but the weights of experts.
    """
    ids = ids.int()
    slots, ends = slots_by_expert(ids, gate_up.shape[0])
    inner = _gate_up(x, gate_up, ids, slots, ends)
    return _down(inner, down, ids, slots, ends, weights).sum(1)
