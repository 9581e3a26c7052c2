"""Calls of operators with gradients and of torch's functions, for any rows and columns."""

from __future__ import annotations

from functools import partial

import torch
from operator_cases.elements import gated
from torch.nn import functional

from tuner import ops
from tuner.ops.operator import OPERATORS

FUNCTIONS = ["gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh", "swiglu", "geglu"]
entropy, rotate = functional.cross_entropy, OPERATORS["rotary"].reference


def matrices(rows, cols, vectors=0):
    return [torch.randn(rows, cols) + 1, *(torch.randn(cols) for _ in range(vectors))]


def targets(rows, classes, ignored=-100):
    found = torch.where(torch.rand(rows) < 0.3, ignored, torch.randint(classes, (rows,)))
    found[0] = classes - 1  # else the mean may be of none
    return found


def losses(rows, cols):
    return [2 * torch.randn(rows, cols), targets(rows, cols)]


def layer(rows, cols, biases=0):
    return [torch.randn(rows, 16), torch.randn(cols, 16) / 4, *[torch.randn(cols)] * biases]


def angles(like):
    found = torch.arange(len(like) * 64, device=like.device).view(-1, 64) / 700.0
    return [each.to(like.dtype)[:, :32] for each in (found.cos(), found.sin())]


def heads(q, k, turn, interleaved=False):
    """Transposed heads, angles that are sliced, and a gradient that is transposed."""
    return torch.cat(turn(q.transpose(0, 1), k, *angles(k), interleaved), 1).transpose(0, 1)


def turned(*given):
    return ops.rotary(*given[:4], interleaved=given[4])


def layer_norm(x, w, b, norm=functional.layer_norm):
    return norm(x, w.shape, w, b)


def rms_norm(x, w, norm=functional.rms_norm):
    return norm(x, w.shape, w, 1e-5)


def chunk(x, w, norm):
    return norm(x[:, 3 : 3 + len(w)], w)


def groups(x, w, b, norm=functional.group_norm):
    return norm(x.reshape(1, len(w), -1), 2, w, b)


#: An operator, torch's function, and the tensors of both for rows and columns.
TRAINED = {
    "cross_entropy": (ops.cross_entropy, entropy, losses),
    **{
        f"cross_entropy {each}": (
            partial(ops.cross_entropy, reduction=each, ignore_index=1),
            partial(entropy, reduction=each, ignore_index=1),
            lambda rows, cols: [torch.randn(rows, cols), targets(rows, cols, 1)],
        )
        for each in ("none", "sum")
    },
    **{
        f"linear loss {each}": (
            partial(ops.fused_linear_cross_entropy, reduction=each),
            lambda h, w, t, each=each: entropy(functional.linear(h, w), t, reduction=each),
            lambda rows, cols: [*layer(rows, cols), targets(rows, cols)],
        )
        for each in ("mean", "sum")
    },
    **{
        each: (
            partial(ops.activation, function=each),
            partial(OPERATORS["activation"].reference, function=each),
            lambda rows, cols: [3 * torch.randn(2, rows, cols)],
        )
        for each in FUNCTIONS
    },
    "linear swiglu": (
        partial(ops.linear, activation="swiglu"),
        lambda x, w: gated(functional.linear(x, w)),
        layer,
    ),
    "linear bias gelu": (
        partial(ops.linear, activation="gelu"),
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
        partial(layer, biases=1),
    ),
    "softmax": (ops.softmax, partial(torch.softmax, dim=-1), matrices),
    "softmax of a chunk": (
        lambda x: ops.softmax(x[:, 5:]), lambda x: x[:, 5:].softmax(-1), matrices
    ),
    "rms_norm": (partial(rms_norm, norm=ops.rms_norm), rms_norm, partial(matrices, vectors=1)),
    "rms_norm of a chunk": (
        partial(chunk, norm=partial(rms_norm, norm=ops.rms_norm)),
        partial(chunk, norm=rms_norm),
        lambda rows, cols: [torch.randn(rows, cols + 8), torch.randn(cols)],
    ),
    "layer_norm": (
        partial(layer_norm, norm=ops.layer_norm), layer_norm, partial(matrices, vectors=2)
    ),
    "add_rms_norm": (
        lambda x, w: sum(ops.add_rms_norm(x, x, w)),
        lambda x, w: rms_norm(x + x, w) + x + x,
        partial(matrices, vectors=1),
    ),
    "group_norm": (
        partial(groups, norm=ops.group_norm),
        groups,
        lambda rows, cols: [torch.randn(rows, 8, cols), *torch.randn(2, 8)],
    ),
    "group_norm of images": (
        lambda x, w, b: ops.group_norm(x, 2, w, b),
        lambda x, w, b: functional.group_norm(x, 2, w, b),
        lambda rows, cols: [torch.randn(3, 6, cols), *torch.randn(2, 6)],
    ),
    **{
        f"heads, {each}": (
            partial(heads, turn=turned, interleaved=each),
            partial(heads, turn=rotate, interleaved=each),
            lambda rows, cols: [torch.randn(3, rows, 64), torch.randn(rows, 2, 64)],
        )
        for each in (False, True)
    },
}  # fmt: skip


def tensors_of(name, rows, cols, device="cpu", dtype=torch.float32):
    """The tensors of a case; those of numbers need gradients."""
    made = (each.to(device) for each in TRAINED[name][2](rows, cols))
    return [each.to(dtype).requires_grad_() if each.is_floating_point() else each for each in made]


def train(function, given, factor=1.0, times=1):
    """The result, and its gradients by all tensors of numbers, as often from one graph."""
    out, needed = function(*given), [each for each in given if each.requires_grad]
    pull = torch.arange(out.numel(), device=out.device, dtype=torch.float64).cos() + 1.5
    pull = (factor * pull.view(out.shape)).to(out.dtype)
    found = [torch.autograd.grad(out, needed, pull, retain_graph=True) for _ in range(times)]
    return [out, *(each for row in found for each in row)]


def widen(given):
    """Copies in float64."""
    numbers = [e.detach().double() if e.is_floating_point() else e for e in given]
    return [e.requires_grad_(o.requires_grad) for e, o in zip(numbers, given, strict=True)]
