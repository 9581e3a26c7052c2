"""Cases of `tuner/ops/experts.py`."""

from __future__ import annotations

from typing import Any

import torch
from edge_samples import Sample, Sampler

from operator_cases.case import Case, KernelCase, draw, zeros
from operator_cases.elements import gated
from search_spaces.kernels.moe_matmul.routing import slots_by_expert
from tuner import ops
from tuner.ops.operator import OPERATORS


def experts(tokens, ids=None, dtype=torch.float32, grad=False):
    """x, gate_up, down, weights and ids of a layer of five experts, two for each token."""
    shapes = (tokens, 8), (5, 12, 8), (5, 8, 6)
    weights, found = ops.topk_routing(draw(tokens, 5), 2)
    ids = found if ids is None else torch.tensor(ids, dtype=torch.int32).expand(tokens, 2)
    return *(draw(*shape, dtype=dtype, grad=grad) for shape in shapes), weights, ids


def plain_experts(x, gate_up, down, weights, ids) -> Any:
    """The same, a token after the other."""
    inner = gated(torch.einsum("tk,tsnk->tsn", x, gate_up[ids.long()]))
    out = torch.einsum("tsk,tsnk->tsn", inner, down[ids.long()])
    return (out * weights.to(out.dtype)[..., None]).sum(1)


def _experts(s: Sampler) -> Sample:
    tokens, dtype = s.size(), s.dtype(product=True)
    shapes = ((tokens, 16), (3, 32, 16), (3, 16, 16), (tokens, 2))
    x, up, down, w = (torch.randn(each, generator=s.source).to(dtype) for each in shapes)
    ids = torch.randint(3, (tokens, 2), generator=s.source).int()
    given = [x, up, down, w.float()]
    return Sample(lambda *g: ops.moe(*g, ids), lambda *g: plain_experts(*g, ids), given)


def _gate_up_arguments():
    x, gate_up, _, _, ids = experts(4)
    return x, gate_up, ids, *slots_by_expert(ids, 5)


def _down_arguments():
    _, _, down, weights, ids = experts(4)
    return draw(8, 6), down, ids, *slots_by_expert(ids, 5), weights


def _multiply(workload, t):
    """Both products of a layer are one kernel."""
    if workload.get("quantized") or workload["gemm"] == "gate_up":
        return None
    given = [t[name] for name in ("x", "w", "ids", "sorted_slots", "ends")]
    if workload["gemm"] == "down":
        return lambda: OPERATORS["moe_down"](*given, t["weights"])
    return lambda: OPERATORS["moe_gate_up"](*given).view(*t["ids"].shape, -1)


CASES = {
    "moe": Case(
        edges=_experts,
        graphs={
            "moe": lambda x: ops.moe(
                x, torch.ones(3, 20, 32), torch.ones(3, 32, 10), x[:, :2], zeros(x.shape[0], 2)
            )
        },
        arguments={"moe_gate_up": _gate_up_arguments, "moe_down": _down_arguments},
        kernels={"moe_matmul": KernelCase(_multiply, defaults=True, multiplies=True)},
    )
}
