"""Cases of `tuner/ops/elements.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import EDGES, LARGE, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw
from tuner import ops
from tuner.ops.operator import OPERATORS

_M = draw(48, 32)
_W, _B = torch.rand(8), torch.rand(8)


def gated(x):
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def _activations(s: Sampler) -> Sample:
    function = s.pick("gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh", "swiglu", "geglu")
    x = s.tensor(s.size(), 2 * s.size(), dtype=s.dtype(), edges=LARGE)
    reference = OPERATORS["activation"].reference
    return Sample(lambda x: ops.activation(x, function), lambda x: reference(x, function), [x])


def _group_norm(s: Sampler) -> Sample:
    dtype, groups = s.dtype(), s.pick(1, 2, 3)
    channels = groups * s.pick(1, 2, 4)
    x = s.tensor(s.size(), channels, s.size(), dtype=dtype, edges=EDGES)
    if s.pick(True, False):
        x = x[..., None].to(memory_format=torch.channels_last)
    given = [x, *(s.tensor(channels, dtype=dtype) for _ in "wb")]
    return Sample(
        lambda x, w, b: ops.group_norm(x, groups, w, b),
        lambda x, w, b: functional.group_norm(x, groups, w, b),
        given,
    )


def _nearest(s: Sampler) -> Sample:
    dtype, dim = s.dtype(product=True), s.pick(1, 3, 16)
    given = [s.tensor(rows, dim, dtype=dtype) for rows in (s.size(), s.pick(1, 5, 33))]

    def plain(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x.double(), c.double()).min(1)[0].square().float()

    return Sample(lambda x, c: ops.nearest_center(x, c)[1], plain, given, gradients=False)


def _call_activation(workload, t):
    if workload["function"] == "relu1":
        return None
    return lambda: ops.activation(t["x"], workload.text("function"))


def _call_backward(workload, t):
    return lambda: OPERATORS["activation_backward"](t["x"], t["dy"], workload.text("function"))


def _call_group_norm(workload, t):
    groups, eps = workload.size("groups"), workload.get("eps", 1e-5)
    if workload["layout"] == "nchw":
        return lambda: ops.group_norm(t["x"], groups, t["weight"], t["bias"], eps)
    images = t["x"][:, None].permute(0, 3, 1, 2)  # channels_last
    given = images, groups, t["weight"], t["bias"], eps
    return lambda: ops.group_norm(*given).permute(0, 2, 3, 1)[:, 0]


CASES = {
    "activation": Case(
        edges=_activations,
        counterparts={
            "gelu": (partial(ops.activation, function="gelu"), functional.gelu, ((3, 8),)),
            "swiglu": (ops.swiglu, gated, ((3, 8),)),
        },
        graphs={"activation": lambda x: ops.activation(x, "silu")},
        arguments={
            "activation": lambda: (draw(4, 6), "swiglu"),
            "activation_backward": lambda: (draw(4, 6), draw(4, 3), "swiglu"),
        },
        kernels={
            "activation": KernelCase(_call_activation),
            "activation_backward": KernelCase(_call_backward, defaults=True),
        },
    ),
    "group_norm": Case(
        edges=_group_norm,
        counterparts={
            "group_norm": (
                lambda x, w, b: ops.group_norm(x, 2, w, b),
                lambda x, w, b: functional.group_norm(x, 2, w, b),
                ((2, 4, 3, 5), (4,), (4,)),
            )
        },
        graphs={"group_norm": lambda x: ops.group_norm(x.view(-1, 8, 4), 4, _B, _W)},
        arguments={"group_norm": lambda: (draw(2, 4, 3), draw(4), draw(4), 2, 1e-5, False)},
        kernels={"group_norm": KernelCase(_call_group_norm, interpreted=False)},
        signature=functional.group_norm,
    ),
    "nearest_center": Case(
        edges=_nearest,
        graphs={"nearest_center": lambda x: ops.nearest_center(x, _M)},
        arguments={"nearest_center": lambda: (draw(4, 6), draw(3, 6))},
        kernels={
            "nearest_center": KernelCase(
                lambda _, t: lambda: ops.nearest_center(t["x"], t["centers"]), multiplies=True
            )
        },
    ),
}
