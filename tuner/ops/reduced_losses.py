"""Losses of rows and what is made of them: their sum or mean, and the gradient of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from search_spaces.kernels.cross_entropy.triton_losses import reduce_losses_kernel
from tuner.ops.problem import PLAIN
from tuner.ops.small_launches import SmallLaunch

REDUCTIONS = ("none", "mean", "sum")
_BLOCK = 2048
_reduce_losses = SmallLaunch(reduce_losses_kernel, num_warps=8)


def read_targets(
    target: torch.Tensor, ignore_index: int, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets that kernels may read, and which rows count.

    On a GPU, a target that is neither a class nor ignored fails on the device, as in torch.
    """
    keep = target != ignore_index
    read = torch.where(keep, target, 0)
    torch._assert_async(((read >= 0) & (read < classes)).all())
    return read, keep


def kept_losses(loss: torch.Tensor, keep: torch.Tensor, reduction: str) -> torch.Tensor:
    """The losses of kept rows, or their sum or mean."""
    loss = torch.where(keep, loss, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / keep.sum()


def gradient_of_losses(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """grad (softmax(x) - onehot(target)) by torch, in the dtype of x."""
    share = x - lse[:, None]
    place, one = target[:, None], share.new_ones((target.shape[0], 1))
    if torch.is_grad_enabled() or type(x) not in PLAIN:  # a graph changes nothing in place
        return (share.exp().scatter_add(1, place, -one) * grad[:, None]).to(x.dtype)
    return share.exp_().scatter_add_(1, place, -one).mul_(grad[:, None]).to(x.dtype)


def result_and_shares(
    loss: torch.Tensor | None,
    target: torch.Tensor,
    rule: tuple[int, int, str],
    dtype: torch.dtype,
    *,
    shares: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The losses that count, their sum or mean, and the gradient of that by each loss, float32.

    rule: the number of classes, the ignored target, and the reduction. Without losses, only the
    shares. One launch, or several of torch.
    """
    classes, ignored, reduction = rule
    rows, alone = target.shape[0], reduction == "none"
    out = share = None
    if loss is not None:
        out = torch.empty((rows,) if alone else (), dtype=dtype, device=target.device)
    if shares:
        share = torch.empty(rows, dtype=torch.float32, device=target.device)
    # Where nothing is written, any tensor stands.
    given = [target if each is None else each for each in (loss, target, out, share)]
    constants = {"REDUCTION": reduction, "LOSSES": loss is not None, "SHARES": shares}
    programs = -(-rows // _BLOCK) if alone else 1
    numbers = (rows, classes, ignored)
    if _reduce_losses(programs, [*given, *numbers], {**constants, "BLOCK": _BLOCK}):
        return out, share
    _, keep = read_targets(target, ignored, classes)
    if loss is not None:
        out = kept_losses(loss, keep, reduction).to(dtype)
    if shares:
        share = keep.float()
        share = torch.where(keep, share / keep.sum(), 0.0) if reduction == "mean" else share
    return out, share


class ReducedLosses(torch.autograd.Function):
    """Cross-entropies of logits, reduced: the kernel of the losses between two small launches.

    run: of logits and targets, gives the losses and the logarithms of the sums of exponentials.
    slope: the gradient of the losses, of logits, targets, these logarithms and its own gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, target: torch.Tensor, rule: tuple[int, int, str],
        dtype: torch.dtype, run: Callable[..., Any], slope: Callable[..., torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        read = target.clamp(0, rule[0] - 1)
        loss, lse = run((x, read))
        out, share = result_and_shares(loss, target, rule, dtype, shares=True)
        assert out is not None
        assert share is not None
        ctx.save_for_backward(x, read, lse, share)
        ctx.slope = slope
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, read, lse, share = ctx.saved_tensors
        if torch.is_grad_enabled():  # of a second derivative, for which lse follows the logits
            lse = torch.logsumexp(x.float(), 1)
        return ctx.slope(x, read, lse, share * grad), *[None] * 5


def losses_of(
    run: Callable[..., Any], inputs: Sequence[torch.Tensor], target: torch.Tensor,
    rule: tuple[int, int, str], dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The same without a gradient. inputs: logits, or what they are the product of."""
    loss, _ = run((*inputs, target.clamp(0, rule[0] - 1)))
    out, _ = result_and_shares(loss, target, rule, dtype, shares=False)
    assert out is not None
    return out
