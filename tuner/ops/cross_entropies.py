"""Cross-entropy of logits, and of a linear layer whose logits are never stored."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from search_spaces.errors import TunerError
from search_spaces.records import Value
from tuner.ops import decompositions
from tuner.ops.operator import Operator
from tuner.ops.problem import HALVES, Problem, as_rows, dtype_name


def _are_targets(target: torch.Tensor, rows: int) -> bool:
    return target.shape == (rows,) and target.dtype is torch.int64 and target.is_contiguous()


# -- cross-entropy ---------------------------------------------------------------------------------
def _losses_problem(x: torch.Tensor, target: torch.Tensor) -> Problem | None:
    sizes = as_rows(x)
    if sizes is None or x.ndim != 2 or not _are_targets(target, sizes[0]):
        return None
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    return Problem("cross_entropy", dims, {"x": x, "target": target}, {"loss": (sizes[0],)})


def _losses_of_torch(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x, target, reduction="none").float()


def _losses_in_graphs(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same in float32: the gradient is that of `loss`, which torch rounds to x's dtype."""
    wide = x.float()
    return wide.logsumexp(-1) - wide.gather(1, target[:, None])[:, 0]


def _gradient_problem(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
) -> Problem | None:
    sizes = as_rows(x)
    if sizes is None or x.ndim != 2 or not _are_targets(target, sizes[0]):
        return None
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    tensors = {"x": x, "target": target, "lse": lse, "grad": grad}
    return Problem("cross_entropy_backward", dims, tensors, {"out": x.shape})


def _gradient_of_torch(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    share = x - lse[:, None]
    place, one = target[:, None], share.new_ones((len(target), 1))
    if torch.is_grad_enabled():
        return (share.exp().scatter_add(1, place, -one) * grad[:, None]).to(x.dtype)
    return share.exp_().scatter_add_(1, place, -one).mul_(grad[:, None]).to(x.dtype)


_cross_entropy_backward = Operator[torch.Tensor](
    "cross_entropy_backward",
    "(Tensor x, Tensor target, Tensor lse, Tensor grad) -> Tensor",
    _gradient_of_torch,
    _gradient_problem,
)


def _save_logits(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _backward_of_losses(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, target, loss = ctx.saved_tensors
    lse = loss + x.gather(1, target[:, None])[:, 0].float()
    return _cross_entropy_backward(x, target, lse, grad.contiguous()), None


_cross_entropy = Operator[torch.Tensor](
    "cross_entropy",
    "(Tensor x, Tensor target) -> Tensor",
    _losses_of_torch,
    _losses_problem,
    setup_context=_save_logits,
    backward=_backward_of_losses,
    in_graphs=_losses_in_graphs,
)


def _reduce(loss: torch.Tensor, keep: torch.Tensor, reduction: str) -> torch.Tensor:
    """The losses of kept rows, or their sum or mean."""
    loss = torch.where(keep, loss, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / keep.sum()


def _read_targets(
    target: torch.Tensor, ignore_index: int, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets that kernels may read, and which rows count.

    A target that is neither a class nor ignored fails on the device, as in torch.
    """
    keep = target != ignore_index
    read = torch.where(keep, target, 0)
    torch._assert_async(((read >= 0) & (read < classes)).all())
    return read, keep


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise TunerError(f"ops.{name}: reduction is {reduction!r}", "use none, mean or sum")


def cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The cross-entropy of logits, as `torch.nn.functional.cross_entropy`.

    Kernels take x[rows, classes] on a GPU with classes as targets, without weights and label
    smoothing. The result has the dtype of x.
    """
    _check_reduction("cross_entropy", reduction)
    plain = weight is None and not label_smoothing and x.ndim == 2 and target.ndim == 1
    if not plain or not x.numel() or target.dtype is not torch.int64 or x.dtype is torch.float64:
        return functional.cross_entropy(
            x, target, weight, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing,
        )  # fmt: skip
    read, keep = _read_targets(target, ignore_index, x.shape[1])
    lower = x.dtype if not torch.is_autocast_enabled("cuda") else torch.float32
    return _reduce(_cross_entropy(x, read), keep, reduction).to(lower)


# -- of a linear layer -----------------------------------------------------------------------------
def _linear_losses_problem(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
) -> Problem | None:
    parts = (hidden, weight)
    if any(each.ndim != 2 or not each.is_contiguous() for each in parts):
        return None
    if hidden.dtype not in HALVES or weight.dtype != hidden.dtype:
        return None
    (tokens, dim), vocab = hidden.shape, weight.shape[0]
    if weight.shape[1] != dim or not _are_targets(target, tokens):
        return None
    dims: dict[str, Value] = {
        "tokens": tokens,
        "dim": dim,
        "vocab": vocab,
        "dtype": dtype_name(hidden),
    }
    tensors = {"hidden": hidden, "weight": weight, "target": target}
    outputs = {"loss": (tokens,), "lse": (tokens,)}
    return Problem("linear_cross_entropy", dims, tensors, outputs)


def _linear_losses_of_torch(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, weight).float()
    lse = logits.logsumexp(1)
    return lse - logits.gather(1, target[:, None])[:, 0], lse


def _linear_gradients_problem(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
) -> Problem | None:
    found = _linear_losses_problem(hidden, weight, target)
    if found is None:
        return None
    tensors = {**found.tensors, "lse": lse, "grad": grad}
    outputs: dict[str, tuple[int, ...]] = {"d_hidden": hidden.shape, "d_weight": weight.shape}
    return Problem("linear_cross_entropy_backward", found.dims, tensors, outputs)


def _linear_gradients_of_torch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, weight)
    slope = _gradient_of_torch(logits, target, lse, grad)
    return slope @ weight, slope.T @ hidden


_linear_cross_entropy_backward = Operator[tuple[torch.Tensor, torch.Tensor]](
    "linear_cross_entropy_backward",
    "(Tensor hidden, Tensor weight, Tensor target, Tensor lse, Tensor grad) -> (Tensor, Tensor)",
    _linear_gradients_of_torch,
    _linear_gradients_problem,
    least_gain=decompositions.ALWAYS,
)


def _save_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward_of_linear_losses(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    return *_linear_cross_entropy_backward(*ctx.saved_tensors, grad.contiguous()), None


_linear_cross_entropy = Operator[tuple[torch.Tensor, torch.Tensor]](
    "linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor target) -> (Tensor, Tensor)",
    _linear_losses_of_torch,
    _linear_losses_problem,
    setup_context=_save_layer,
    backward=_backward_of_linear_losses,
    autocast="lower",
    least_gain=decompositions.ALWAYS,
)


def fused_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """The cross-entropy of hidden @ weight.T, without storing these logits; float32.

    hidden[tokens, dim], weight[vocab, dim], target[tokens] of int64. ignore_index, reduction: as of
    `cross_entropy`.
    """
    _check_reduction("fused_linear_cross_entropy", reduction)
    read, keep = _read_targets(target, ignore_index, weight.shape[0])
    return _reduce(_linear_cross_entropy(hidden, weight, read)[0], keep, reduction)
