"""Cases of `tuner/ops/tokens.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import LARGE, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw, zeros
from tuner import ops
from tuner.ops.operator import OPERATORS

_M = draw(48, 32)
IDS = torch.tensor([[0, 4, 2], [2, 2, 1]])


def _embedding(s: Sampler) -> Sample:
    weight = s.tensor(s.size(), s.size(), dtype=s.dtype(), edges=LARGE)
    ids = s.ids(s.size(), s.pick(1, 3), below=weight.shape[0]).to(s.pick(torch.int64, torch.int32))
    return Sample(lambda w: ops.embedding(ids, w), lambda w: functional.embedding(ids, w), [weight])


def _routing(s: Sampler) -> Sample:
    logits = s.tensor(s.size(), s.pick(1, 3, 8, 17), dtype=s.dtype(), edges=LARGE)
    k, renormalize = s.pick(1, 2, 8), s.pick(True, False)
    reference = OPERATORS["topk_routing"].reference
    return Sample(
        lambda x: ops.topk_routing(x, k, renormalize=renormalize),
        lambda x: reference(x, k, renormalize),
        [logits],
        results=1,
    )


def _call_embedding(_, t):
    return lambda: ops.embedding(t["index"], t["table"])


def _call_routing(workload, t):
    k, renormalize = workload.size("top_k"), bool(workload["renormalize"])
    return lambda: ops.topk_routing(t["logits"], k, renormalize=renormalize)


CASES = {
    "embedding": Case(
        edges=_embedding,
        counterparts={
            "embedding": (
                partial(ops.embedding, IDS),
                partial(functional.embedding, IDS),
                ((5, 7),),
            )
        },
        graphs={"embedding": lambda x: ops.embedding(zeros(x.shape[0]), _M)},
        autocast=(
            lambda x: ops.embedding(zeros(4, like=x), x),
            lambda x: functional.embedding(zeros(4, like=x), x),
            ((4, 8),),
        ),
        arguments={"embedding": lambda: (IDS, draw(5, 7))},
        kernels={"embedding": KernelCase(_call_embedding, defaults=True)},
        signature=functional.embedding,
    ),
    "topk_routing": Case(
        edges=_routing,
        graphs={"topk_routing": lambda x: ops.topk_routing(x, 2)},
        arguments={"topk_routing": lambda: (draw(4, 6), 2, True)},
        kernels={"topk_routing": KernelCase(_call_routing, defaults=True)},
    ),
}
