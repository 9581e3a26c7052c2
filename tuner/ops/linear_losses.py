"""The loss of a linear layer with its gradients, which the forward pass makes.

The gradient of the logits needs the logits, which are not stored: a backward pass would make their
product again. The forward pass makes them in chunks of tokens, and of each the gradients at once:
three products in all. A backward pass multiplies them by its gradient. (Hsu et al., Liger Kernel,
2024.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from search_spaces.block_sizes import next_power_of_two
from search_spaces.kernels.cross_entropy.kernel import loss_of
from search_spaces.kernels.cross_entropy.triton_losses import loss_and_gradient_kernel, scale_kernel
from tuner.ops.reduced_losses import gradient_of_losses, result_and_shares
from tuner.ops.small_launches import SmallLaunch

#: Bytes of the logits of a chunk at most, or those of the weight where that has more.
_CHUNK_BYTES = 2**30
#: The first token of a chunk is a multiple of this number.
_TOKENS = 128
_WORD_BYTES = 16
#: Of the kernel: elements of a block at most, and blocks in flight.
_LEAST_BLOCK, _MOST_BLOCK, _STAGES = 256, 16384, 3
_SCALED_BLOCK, _SCALED_PROGRAMS = 4096, 2048

_gradients_in_place = {
    block: SmallLaunch(loss_and_gradient_kernel, num_warps=max(2, block // 512))
    for block in (256 << at for at in range(7))
}
_scale = SmallLaunch(scale_kernel, num_warps=8)


def losses_and_gradients(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    share: torch.Tensor,
    needed: Sequence[bool] = (True, True),
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The loss of every token, float32, and the gradients of the sum of share * loss.

    hidden[tokens, dim], weight[vocab, dim], target[tokens] of classes, share[tokens] of float32.
    needed: of which of hidden and weight. The gradient of the weight is summed over chunks in
    float32 or wider.
    """
    tokens, vocab = hidden.shape[0], weight.shape[0]
    most = max(_CHUNK_BYTES, weight.numel() * weight.element_size())
    chunks = -(-tokens * vocab * weight.element_size() // most)
    size = -(-tokens // (chunks * _TOKENS)) * _TOKENS
    loss = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
    of_hidden = hidden.new_empty(hidden.shape) if needed[0] else None
    of_weight: torch.Tensor | None = None
    for first in range(0, tokens, size):
        part = slice(first, first + size)
        slope = functional.linear(hidden[part], weight)
        _replace(slope, target[part], share[part], loss[part])
        if of_hidden is not None:
            torch.mm(slope, weight, out=of_hidden[part])
        if needed[1]:
            product = slope.T @ hidden[part]
            if of_weight is None:
                wide = torch.promote_types(product.dtype, torch.float32)
                of_weight = product if size >= tokens else product.to(wide)
            else:
                of_weight += product
    return loss, of_hidden, None if of_weight is None else of_weight.to(weight.dtype)


def _replace(
    logits: torch.Tensor, target: torch.Tensor, share: torch.Tensor, loss: torch.Tensor
) -> None:
    """Write the losses of logits, and their gradient in the place of the logits."""
    rows, cols = logits.shape
    vector = _WORD_BYTES // logits.element_size()
    reached = cols if cols % vector == 0 else cols + vector - 1
    block = max(_LEAST_BLOCK, min(_MOST_BLOCK, next_power_of_two(cols)))
    whole = -(-reached // block) * block
    constants = {"COLS": cols, "BLOCK": block, "VEC": vector, "PART": whole}
    constants |= {"EVEN": whole == cols, "LOAD_STAGES": _STAGES}
    if not _gradients_in_place[block](rows, [logits, target, share, loss], constants):
        found, lse = loss_of(logits.float(), target)
        loss.copy_(found)
        logits.copy_(gradient_of_losses(logits, target, lse, share))


def _scale_in_place(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """x * factor in the memory of x; the device alone knows whether the factor is 1."""
    elements = x.numel()
    programs = min(-(-elements // _SCALED_BLOCK), _SCALED_PROGRAMS)
    constants = {"BLOCK": _SCALED_BLOCK, "PROGRAMS": programs}
    return x if _scale(programs, [x, factor, elements], constants) else x.mul_(factor)


class LinearLosses(torch.autograd.Function):
    """The sum or mean of the losses of a linear layer.

    The first backward pass gives the gradients away, in their own memory; another one, of a graph
    that was retained, makes them anew.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
        rule: tuple[int, int, str],
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(hidden, weight, target)
        ctx.rule = rule
        out: torch.Tensor
        out, ctx.rest, *ctx.made = _solve(hidden, weight, target, rule, ctx.needs_input_grad)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(hidden, weight, target, ctx.rule, grad), None, None
        made, ctx.made = ctx.made, None
        if made is None:
            _, _, *made = _solve(hidden, weight, target, ctx.rule, ctx.needs_input_grad)
        grad = grad if ctx.rest is None else grad * ctx.rest
        return *(None if each is None else _scale_in_place(each, grad) for each in made), None, None


def _solve(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
    rule: tuple[int, int, str], needed: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """The sum or mean, and its gradients of hidden and weight, which another factor may complete.

    In float16, shares of a mean would be nothing before the gradient of a scaled loss is known.
    """
    (classes, ignored, reduction), rest = rule, None
    if reduction == "mean" and hidden.dtype is torch.float16:
        rest = 1.0 / (target != ignored).sum().clamp(min=1)
    alike = (classes, ignored, "sum" if rest is not None else reduction)
    _, share = result_and_shares(None, target, alike, torch.float32, shares=True)
    read = target.clamp(0, classes - 1)
    assert share is not None
    loss, *made = losses_and_gradients(hidden, weight, read, share, needed[:2])
    out, _ = result_and_shares(loss, target, rule, torch.float32, shares=False)
    return [out, rest, *made]


def _differentiable(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor,
    rule: tuple[int, int, str], grad: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients by functions of torch, which have gradients themselves."""
    logits = functional.linear(hidden, weight).float()
    loss = functional.cross_entropy(logits, target, ignore_index=rule[1], reduction=rule[2])
    needed = [each for each in (hidden, weight) if each.requires_grad]
    found = iter(torch.autograd.grad(loss, needed, grad, create_graph=True))
    return tuple(next(found) if each.requires_grad else None for each in (hidden, weight))
