"""Cross-entropy of logits, and of a linear layer whose logits are never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from search_spaces.kernels.cross_entropy.kernel import loss_of
from search_spaces.records import Value
from tuner.ops import decompositions
from tuner.ops.linear_losses import LinearLosses, losses_and_gradients
from tuner.ops.operator import (
    WIDE,
    Operator,
    autocasts,
    is_transformed,
    lower_dtype,
    may_run_kernels,
)
from tuner.ops.overriding import overridable
from tuner.ops.problem import FLOATS, HALVES, PLAIN, Problem, are_in_range, as_rows, dtype_name
from tuner.ops.reduced_losses import (
    REDUCTIONS,
    ReducedLosses,
    gradient_of_losses,
    kept_losses,
    losses_of,
    read_targets,
)


def _are_targets(target: torch.Tensor, rows: int) -> bool:
    return target.shape == (rows,) and target.dtype is torch.int64 and target.is_contiguous()


# -- cross-entropy ---------------------------------------------------------------------------------
def _losses_problem(x: torch.Tensor, target: torch.Tensor) -> Problem | None:
    sizes = as_rows(x)
    if sizes is None or x.ndim != 2 or not _are_targets(target, sizes[0]):
        return None
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    outputs = {"loss": (sizes[0],), "lse": (sizes[0],)}
    return Problem("cross_entropy", dims, {"x": x, "target": target}, outputs)


def _losses_of_torch(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and lse of every row, in float32: the gradient needs more than the dtype of x."""
    return loss_of(x.float(), target)


def _gradient_problem(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
) -> Problem | None:
    sizes = as_rows(x)
    if sizes is None or x.ndim != 2 or not _are_targets(target, sizes[0]):
        return None
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    tensors = {"x": x, "target": target, "lse": lse, "grad": grad}
    return Problem("cross_entropy_backward", dims, tensors, {"out": x.shape})


_cross_entropy_backward = Operator[torch.Tensor](
    "cross_entropy_backward",
    "(Tensor x, Tensor target, Tensor lse, Tensor grad) -> Tensor",
    gradient_of_losses,
    _gradient_problem,
)


def _save_with_lse(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward_of_losses(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    return _cross_entropy_backward(*ctx.saved_tensors, grad.contiguous()), None


_cross_entropy = Operator[tuple[torch.Tensor, torch.Tensor]](
    "cross_entropy",
    "(Tensor x, Tensor target) -> (Tensor, Tensor)",
    _losses_of_torch,
    _losses_problem,
    setup_context=_save_with_lse,
    backward=_backward_of_losses,
    autocast=WIDE,
)


def _takes(
    x: torch.Tensor, target: torch.Tensor, classes: int, ignore_index: int, reduction: str
) -> bool:
    """Whether these are rows of numbers and a target for each, of which torch refuses none."""
    if reduction not in REDUCTIONS or x.ndim != 2 or not x.numel() or not classes:
        return False
    if target.dtype is not torch.int64 or target.shape != x.shape[:1] or target.device != x.device:
        return False
    return are_in_range(target, classes, ignore_index)


@overridable(functional.cross_entropy)
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The cross-entropy of logits, as `torch.nn.functional.cross_entropy`.

    Kernels take logits[rows, classes] with classes as targets, without weights and label smoothing.
    """
    others = (weight, size_average, reduce)
    plain = all(each is None for each in others) and not label_smoothing
    plain = plain and input.dtype in FLOATS and input.ndim == 2
    if plain and _takes(input, target, input.shape[1], ignore_index, reduction):
        dtype = torch.float32 if autocasts([input]) else input.dtype
        rule = input.shape[1], ignore_index, reduction
        found = _cross_entropy.find(input, target)
        if found is None and _cross_entropy.serves(input, target):
            read, keep = read_targets(target, ignore_index, input.shape[1])
            return kept_losses(_cross_entropy(input, read)[0], keep, reduction).to(dtype)
        run, gradient = found or (None, False)
        if run is not None and gradient:
            given = input, target, rule, dtype, run, _cross_entropy_backward
            loss: torch.Tensor = ReducedLosses.apply(*given)  # type: ignore[no-untyped-call]
            return loss
        if run is not None:
            return losses_of(run, [input], target, rule, dtype)
    return functional.cross_entropy(
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


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
    return loss_of(functional.linear(hidden, weight).float(), target)


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
    slope = gradient_of_losses(logits, target, lse, grad)
    return slope @ weight, slope.T @ hidden


_linear_cross_entropy_backward = Operator[tuple[torch.Tensor, torch.Tensor]](
    "linear_cross_entropy_backward",
    "(Tensor hidden, Tensor weight, Tensor target, Tensor lse, Tensor grad) -> (Tensor, Tensor)",
    _linear_gradients_of_torch,
    _linear_gradients_problem,
    least_gain=decompositions.ALWAYS,
)


def _backward_of_linear_losses(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    return *_linear_cross_entropy_backward(*ctx.saved_tensors, grad.contiguous()), None


_linear_cross_entropy = Operator[tuple[torch.Tensor, torch.Tensor]](
    "linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor target) -> (Tensor, Tensor)",
    _linear_losses_of_torch,
    _linear_losses_problem,
    setup_context=_save_with_lse,
    backward=_backward_of_linear_losses,
    autocast="lower",
    least_gain=decompositions.ALWAYS,
)


class _WithGradients(Operator[tuple[torch.Tensor, ...]]):
    """No kernel of a table runs it, and torch's function in its place would store the logits."""

    def _stays(self, arguments: Sequence[Any], device: torch.device) -> bool:
        return True


def _empty_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, share: torch.Tensor,
    of_hidden: bool, of_weight: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    made = zip((hidden, weight), (of_hidden, of_weight), strict=True)
    empty = (each.new_empty(each.shape if needed else (0,)) for each, needed in made)
    return share.new_empty(()), *empty


def _total_and_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, share: torch.Tensor,
    of_hidden: bool, of_weight: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    if type(hidden) in PLAIN and not torch.is_grad_enabled():
        loss, *made = losses_and_gradients(hidden, weight, target, share, (of_hidden, of_weight))
    else:  # as a graph has it: any number of tokens, all at once
        logits = functional.linear(hidden, weight)
        loss, lse = loss_of(logits.float(), target)
        slope = gradient_of_losses(logits, target, lse, share)
        made = [slope @ weight if of_hidden else None, slope.T @ hidden if of_weight else None]
    empty = hidden.new_empty(0)
    return (loss * share).sum(), *(empty.clone() if each is None else each for each in made)


def _save_made(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *_, ctx.of_hidden, ctx.of_weight = inputs
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward_of_made(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    made = zip(ctx.saved_tensors, (ctx.of_hidden, ctx.of_weight), strict=True)
    return *((each * grad).to(each.dtype) if needed else None for each, needed in made), *[None] * 4


#: The sum of share * loss, and its gradients, for graphs: `linear_losses` has the functions.
_linear_loss_gradients = _WithGradients(
    "linear_loss_gradients",
    "(Tensor hidden, Tensor weight, Tensor target, Tensor share, bool of_hidden, bool of_weight)"
    " -> (Tensor, Tensor, Tensor)",
    _total_and_gradients,
    lambda *_: None,
    setup_context=_save_made,
    backward=_backward_of_made,
    fake=_empty_gradients,
    autocast="lower",
    keeps=("share",),
)


def _loss_in_graph(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, rule: tuple[int, int, str]
) -> torch.Tensor:
    """The sum or mean of the losses with gradients that the forward pass makes, in a graph."""
    read, keep = read_targets(target, rule[1], rule[0])
    needed = hidden.requires_grad, weight.requires_grad
    total = _linear_loss_gradients(hidden, weight, read, keep.float(), *needed)[0]
    return total / keep.sum() if rule[2] == "mean" else total


@overridable()
def fused_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """The cross-entropy of hidden @ weight.T, without storing these logits; float32.

    With gradients, the forward pass makes them, of up to 1 GiB of logits at a time.

    hidden[tokens, dim], weight[vocab, dim], target[tokens] of int64. ignore_index, reduction, and
    what is refused: as of `cross_entropy`.
    """
    if weight.ndim != 2 or not _takes(hidden, target, weight.shape[0], ignore_index, reduction):
        logits = functional.linear(hidden, weight).float()
        return functional.cross_entropy(
            logits, target, ignore_index=ignore_index, reduction=reduction
        )
    rule, run, target = (weight.shape[0], ignore_index, reduction), None, target.contiguous()
    if not torch.compiler.is_compiling():
        if autocasts([hidden]):
            lower = torch.get_autocast_dtype("cuda")
            hidden, weight = (lower_dtype(each, lower) for each in (hidden, weight))
        given = hidden, weight, target
        if reduction != "none" and _takes_gradients(hidden, weight) and may_run_kernels(given):
            loss: torch.Tensor = LinearLosses.apply(*given, rule)  # type: ignore[no-untyped-call]
            return loss
        run, gradient = _linear_cross_entropy.find(*given) or (None, False)
        if run is not None and not gradient:
            return losses_of(run, [hidden, weight], target, rule, torch.float32)
    elif reduction != "none" and _takes_gradients(hidden, weight) and not is_transformed():
        return _loss_in_graph(hidden, weight, target, rule)
    read, keep = read_targets(target, ignore_index, weight.shape[0])
    return kept_losses(_linear_cross_entropy(hidden, weight, read)[0], keep, reduction)


def _takes_gradients(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a gradient is needed of matrices whose logits torch can make in chunks."""
    if not (torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)):
        return False
    alike = hidden.dtype == weight.dtype and hidden.device == weight.device
    return alike and hidden.dtype in FLOATS and hidden.shape[1] == weight.shape[1]
