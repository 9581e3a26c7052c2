"""Cases of `tuner/ops/cross_entropies.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import EDGES, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw, zeros
from tuner import ops
from tuner.ops.operator import OPERATORS

_M = draw(48, 32)


def _losses(s: Sampler, name: str) -> Sample:
    rows, ignored = s.size(), s.pick(-100, 0)
    classes = s.size() if name == "cross_entropy" else s.pick(0, 1, 65, 100)
    target = s.ids(rows if s.random.random() < 0.95 else 1, below=classes)
    if target.numel():
        target[0] = ignored
    more = {"reduction": s.pick("mean", "sum", "none"), "ignore_index": ignored}
    if name == "cross_entropy":
        x = s.tensor(rows, classes, dtype=s.dtype(), edges=EDGES)
        return Sample(
            lambda x: ops.cross_entropy(x, target, **more),
            lambda x: functional.cross_entropy(x, target, **more),
            [x],
        )
    dtype, dim = s.dtype(product=True), s.pick(1, 9, 40)
    dtype = torch.float32 if dtype is torch.float64 else dtype  # in which its losses are anyway
    given = [s.tensor(each, dim, dtype=dtype) for each in (rows, classes)]

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.linear(x, w).float(), target, **more)

    return Sample(lambda x, w: ops.fused_linear_cross_entropy(x, w, target, **more), plain, given)


def _call(operator, *names, **facts):
    """A kernel whose problems are all calls of an operator with the tensors of these names."""
    return KernelCase(lambda _, t: lambda: OPERATORS[operator](*(t[n] for n in names)), **facts)


CASES = {
    "cross_entropy": Case(
        edges=partial(_losses, name="cross_entropy"),
        graphs={"cross_entropy": lambda x: ops.cross_entropy(x, zeros(x.shape[0]))},
        autocast=(
            lambda x: ops.cross_entropy(x, zeros(4, like=x)),
            lambda x: functional.cross_entropy(x, zeros(4, like=x)),
            ((4, 8),),
        ),
        arguments={
            "cross_entropy": lambda: (draw(4, 6), torch.arange(4)),
            "cross_entropy_backward": lambda: (draw(4, 6), torch.arange(4), *[torch.rand(4)] * 2),
        },
        kernels={
            "cross_entropy": _call("cross_entropy", "x", "target"),
            "cross_entropy_backward": _call("cross_entropy_backward", "x", "target", "lse", "grad"),
        },
        signature=functional.cross_entropy,
    ),
    "fused_linear_cross_entropy": Case(
        edges=partial(_losses, name="fused_linear_cross_entropy"),
        graphs={"linear loss": lambda x: ops.fused_linear_cross_entropy(x, _M, zeros(x.shape[0]))},
        arguments={
            "linear_cross_entropy": lambda: (draw(4, 6), draw(5, 6), torch.arange(4)),
            "linear_loss_gradients": lambda: (
                draw(4, 6),
                draw(5, 6),
                torch.arange(4),
                torch.rand(4).requires_grad_(False),
                True,
                True,
            ),
            "linear_cross_entropy_backward": lambda: (
                draw(4, 6),
                draw(5, 6),
                torch.arange(4),
                *[torch.rand(4)] * 2,
            ),
        },
        kernels={
            "linear_cross_entropy": _call(
                "linear_cross_entropy", "hidden", "weight", "target", multiplies=True
            ),
            "linear_cross_entropy_backward": _call(
                "linear_cross_entropy_backward",
                "hidden",
                "weight",
                "target",
                "lse",
                "grad",
                interpreted=False,
            ),
        },
    ),
}
