"""Operators of tokens: their rows of an embedding, and their experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from search_spaces.records import Value
from tuner.ops.operator import Operator
from tuner.ops.overriding import overridable
from tuner.ops.problem import Problem, are_in_range, as_rows, dtype_name


# -- embedding -------------------------------------------------------------------------------------
def _embedding_problem(ids: torch.Tensor, weight: torch.Tensor) -> Problem | None:
    if ids.dtype is not torch.int64 or not ids.is_contiguous():
        return None
    sizes = as_rows(weight) if weight.ndim == 2 else None
    if sizes is None:
        return None
    (vocab, dim), tokens = sizes, ids.numel()
    dims: dict[str, Value] = {"tokens": tokens, "vocab": vocab, "dim": dim}
    tensors = {"index": ids.view(tokens), "table": weight}
    outputs = {"out": (*ids.shape, dim)}
    return Problem("embedding", {**dims, "dtype": dtype_name(weight)}, tensors, outputs)


_embedding = Operator[torch.Tensor](
    "embedding",
    "(Tensor ids, Tensor weight) -> Tensor",
    functional.embedding,
    _embedding_problem,
)


@overridable(functional.embedding)
def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """weight[input], as `torch.nn.functional.embedding`: weight[vocab, dim], ids of any shape.

    Kernels take int64 ids, and do not check them: on a GPU, one that is no row of the weight reads
    other memory. With gradients or further arguments, torch runs.
    """
    plain = padding_idx is None and max_norm is None and not (scale_grad_by_freq or sparse)
    if plain and weight.ndim and are_in_range(input, weight.shape[0]):
        return _embedding(input, weight)
    return functional.embedding(
        input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    )


# -- routing ---------------------------------------------------------------------------------------
def _routing_problem(logits: torch.Tensor, top_k: int, renormalize: bool) -> Problem | None:
    sizes = as_rows(logits)
    if sizes is None:
        return None
    dims: dict[str, Value] = {"tokens": sizes[0], "experts": sizes[1], "top_k": top_k}
    dims |= {"renormalize": renormalize, "dtype": dtype_name(logits)}
    chosen = (*logits.shape[:-1], top_k)
    outputs = {"weights": chosen, "ids": chosen}
    return Problem("topk_routing", dims, {"logits": logits.view(sizes)}, outputs)


def _routing_of_torch(
    logits: torch.Tensor, top_k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights, ids = logits.softmax(-1, dtype=wide).topk(top_k, -1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.int()


_topk_routing = Operator[tuple[torch.Tensor, torch.Tensor]](
    "topk_routing",
    "(Tensor logits, int top_k, bool renormalize) -> (Tensor, Tensor)",
    _routing_of_torch,
    _routing_problem,
)


@overridable()
def topk_routing(
    logits: torch.Tensor, top_k: int, *, renormalize: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token: weights[..., top_k], the largest of the softmax of logits[...,
    experts] in falling order, and their numbers (int32).

    Weights are float32 (of float64 logits, float64); renormalize: divided by their sum. The order
    of equal logits is open. With gradients, torch runs.
    """
    return _topk_routing(logits, top_k, renormalize)
