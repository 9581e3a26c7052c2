"""Cases of `tuner/ops/rows.py`."""

from __future__ import annotations

from functools import partial

import torch
from edge_samples import EDGES, LARGE, Sample, Sampler
from torch.nn import functional

from operator_cases.case import Case, KernelCase, draw
from tuner import ops
from tuner.ops.operator import OPERATORS

_NORM_EPS = 1e-5
_W, _B = torch.rand(32), torch.rand(32)


def rms(x, w, eps=1e-5, norm=functional.rms_norm):
    return norm(x, x.shape[-1:], w, eps)


def layer(x, w, b, norm=functional.layer_norm):
    return norm(x, w.shape, w, b)


our_rms = partial(rms, norm=ops.rms_norm)
our_layer = partial(layer, norm=ops.layer_norm)


def _rows(s: Sampler, name: str) -> Sample:
    x = s.tensor(s.size(), s.size(), dtype=s.dtype(), edges=LARGE)
    ours, torchs = getattr(ops, name), getattr(torch, name)
    return Sample(lambda x: ours(x, -1), lambda x: torchs(x, -1), [x])


def _norms(s: Sampler, name: str) -> Sample:
    # Two elements are normed to -1 and 1, and their gradient is what rounding leaves.
    dtype, cols = s.dtype(), s.pick(0, 1, 3, 5, 8, 17, 33)
    rows = s.size()
    x, y = (s.tensor(each, cols, dtype=dtype, edges=EDGES) for each in (rows, s.pick(rows, 1)))
    w, b = (s.tensor(cols, dtype=dtype) for _ in "wb")
    if name == "layer_norm":
        return Sample(
            lambda *g: ops.layer_norm(g[0], (cols,), *g[1:]),
            lambda *g: functional.layer_norm(g[0], (cols,), *g[1:]),
            [x, w, b],
        )
    if name == "rms_norm":
        return Sample(
            lambda x, w: ops.rms_norm(x, (cols,), w, 1e-5),
            lambda x, w: functional.rms_norm(x, (cols,), w, 1e-5),
            [x, w],
        )
    return Sample(
        ops.add_rms_norm,
        lambda x, y, w: (functional.rms_norm(x + y, (cols,), w, 1e-5), x + y),
        [x, y, w],
    )


def _online_softmax(workload, t):
    if workload["mask"] != "none":
        return None
    return lambda: (ops.log_softmax if workload["log"] else ops.softmax)(t["x"])


def _rms_norm(workload, t):
    x, eps = t["x"], workload.get("eps", _NORM_EPS)
    return lambda: ops.rms_norm(x, x.shape[1:], t["weight"], eps)


def _layer_norm(workload, t):
    x, eps = t["x"], workload.get("eps", _NORM_EPS)
    return lambda: ops.layer_norm(x, x.shape[1:], t["weight"], t["bias"], eps)


def _norm_backward(_, t):
    given = t["x"], t["dy"], t["weight"], t["rstd"], t.get("mean")
    return lambda: OPERATORS["norm_backward"](*given)


def _add_norm(workload, t):
    if (workload["kind"], workload["to"]) != ("rms_norm", "same"):
        return None
    eps = workload.get("eps", _NORM_EPS)
    return lambda: ops.add_rms_norm(t["x"], t["residual"], t["weight"], eps)[::-1]


CASES = {
    "softmax": Case(
        edges=partial(_rows, name="softmax"),
        counterparts={
            "softmax": (ops.softmax, partial(torch.softmax, dim=-1), ((3, 4, 5),)),
            "softmax of dim 1": (
                partial(ops.softmax, dim=1),
                partial(torch.softmax, dim=1),
                ((3, 4, 5),),
            ),
        },
        graphs={"softmax": lambda x: ops.softmax(x)},
        arguments={
            "softmax": lambda: (draw(4, 6),),
            "softmax_backward": lambda: (draw(4, 6), draw(4, 6), False),
        },
        kernels={
            "softmax": KernelCase(lambda _, t: lambda: ops.softmax(t["x"]), defaults=True),
            "softmax_backward": KernelCase(
                lambda workload, t: (
                    lambda: OPERATORS["softmax_backward"](t["y"], t["dy"], workload["log"])
                )
            ),
        },
        signature="input dim dtype",
    ),
    "log_softmax": Case(
        edges=partial(_rows, name="log_softmax"),
        counterparts={
            "log_softmax": (ops.log_softmax, partial(torch.log_softmax, dim=-1), ((3, 7),))
        },
        graphs={"log_softmax": lambda x: ops.log_softmax(x)},
        arguments={"log_softmax": lambda: (draw(4, 6),)},
        kernels={"online_softmax": KernelCase(_online_softmax)},
        signature="input dim dtype",
    ),
    "rms_norm": Case(
        edges=partial(_norms, name="rms_norm"),
        counterparts={
            "rms_norm": (our_rms, rms, ((2, 3, 8), (8,))),
            "rms_norm without eps": (
                partial(our_rms, eps=None),
                partial(rms, eps=None),
                ((3, 8), (8,)),
            ),
        },
        graphs={"rms_norm": lambda x: ops.rms_norm(x, (32,), _W, 1e-5)},
        arguments={
            "rms_norm": lambda: (draw(4, 6), draw(6), 1e-5),
            "norm_backward": lambda: (draw(4, 6), draw(4, 6), draw(6), *[torch.rand(4)] * 2),
        },
        kernels={
            "rms_norm": KernelCase(_rms_norm),
            "norm_backward": KernelCase(_norm_backward),
        },
        signature=functional.rms_norm,
    ),
    "layer_norm": Case(
        edges=partial(_norms, name="layer_norm"),
        counterparts={
            "layer_norm": (our_layer, layer, ((2, 3, 8), (8,), (8,))),
            "layer_norm of two dims": (our_layer, layer, ((2, 3, 8), (3, 8), (3, 8))),
            "layer_norm alone": (
                lambda x: ops.layer_norm(x, (8,)),
                lambda x: functional.layer_norm(x, (8,)),
                ((3, 8),),
            ),
        },
        graphs={"layer_norm": lambda x: ops.layer_norm(x, (32,), _W, _B)},
        arguments={"layer_norm": lambda: (draw(4, 6), draw(6), draw(6), 1e-5)},
        kernels={"layer_norm": KernelCase(_layer_norm)},
        signature=functional.layer_norm,
    ),
    "add_rms_norm": Case(
        edges=partial(_norms, name="add_rms_norm"),
        counterparts={
            "add_rms_norm": (
                ops.add_rms_norm,
                lambda x, r, w: (rms(x + r, w), x + r),
                ((2, 3, 8), (2, 3, 8), (8,)),
            )
        },
        graphs={"add_rms_norm": lambda x: ops.add_rms_norm(x, x, _W)},
        arguments={"add_rms_norm": lambda: (draw(4, 6), draw(4, 6), draw(6), 1e-5)},
        kernels={"add_norm": KernelCase(_add_norm)},
    ),
}
