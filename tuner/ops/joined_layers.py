"""Linear layers of one input as one product: gate and value of a layer, the projections of heads.

Each parameter stays itself, and its data is a part of one storage (`join_layers`), of which a view
is the weight of the product. A graph that is compiled has an operator instead, which looks for that
view when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from tuner.ops.operator import takes_plain

#: Of the first of layers that were joined, and where their parameters lay and how, when that was
#: last looked up.
_MARK, _PLACES = "_tuner_joined", "_tuner_places"
#: Sizes and strides of joint tensors; none where parameters lie apart.
_Shapes: TypeAlias = list[tuple[tuple[int, ...], tuple[int, ...]]]


def is_bare(module: nn.Module, kind: type[nn.Module] | None = None) -> bool:
    """Whether a call of a module is its class's `forward` alone: no hooks, nothing on top."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    bare = not any(hooks) and not module._backward_pre_hooks and "forward" not in module.__dict__
    return bare and (kind is None or type(module) is kind)


def _parts_of(layers: Sequence[Any]) -> list[list[nn.Parameter]]:
    """The weights of layers and then their biases, if they have any; empty where these are not
    plain parameters that differ in their rows alone."""
    if not layers or any(type(each) is not nn.Linear for each in layers):
        return []
    biases = [each.bias for each in layers if each.bias is not None]
    found = [[each.weight for each in layers], *([biases] if biases else [])]
    return found if all(len(each) == len(layers) and _are_alike(each) for each in found) else []


def _are_alike(parts: Sequence[torch.Tensor]) -> bool:
    first = parts[0]
    return len(set(map(id, parts))) == len(parts) and all(
        type(each) is nn.Parameter
        and each.is_contiguous()
        and each.device.type in ("cpu", "cuda")
        and (each.shape[1:], each.dtype, each.device)
        == (first.shape[1:], first.dtype, first.device)
        for each in parts
    )


def _view_joint(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """All parts as one tensor, where they lie one behind the other in one storage."""
    first, end = parts[0], parts[0].data_ptr()
    for each in parts:
        if each.data_ptr() != end or not each.is_contiguous():
            return None
        end += each.nbytes
    storage = first.untyped_storage()
    if storage.data_ptr() + storage.nbytes() < end:
        return None
    rows = sum(map(len, parts))
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())


def join_layers(layers: Sequence[Any]) -> None:
    """Give the weights of layers one storage, and their biases; shared ones stay as they are."""
    found = _parts_of(layers)
    for parts in found:
        if all(each.untyped_storage().nbytes() == each.nbytes for each in parts):
            for each, data in zip(parts, _split(torch.cat([*parts]), parts), strict=True):
                each.data = data
    if found:
        setattr(layers[0], _MARK, all(_view_joint(parts) is not None for parts in found))


def _split(joint: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.split_with_sizes(joint, [len(each) for each in parts])


def separate_layers(layers: Sequence[Any]) -> None:
    """Give each parameter a storage of its own again."""
    for parts in _parts_of(layers):
        vars(layers[0]).pop(_MARK, None)
        vars(layers[0]).pop(_PLACES, None)
        if _view_joint(parts) is not None:
            for each in parts:
                each.data = each.data.clone()


def _joint_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All parts as one tensor: a view, or a copy where they lie apart, as after a hook on saved
    tensors copied them."""
    found = _view_joint(parts)
    return torch.cat([*parts]) if found is None else found


class _JointLinear(torch.autograd.Function):
    """The layers of x side by side: one product forward, two backward. torch's graph of n layers
    multiplies n and 2 n times, and adds what it pulls back to x.

    parts: their weights, then their biases.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int, *parts: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *parts[:count])
        biases = parts[count:]
        return functional.linear(x, _joint_of(parts[:count]), _joint_of(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        need_x, _, *needed = ctx.needs_input_grad
        count, flat = len(weights), grad.flatten(0, -2)
        found: list[torch.Tensor | None] = [None] * len(needed)
        joint = torch.cat(weights) if torch.is_grad_enabled() else _joint_of(weights)
        dx = grad @ joint if need_x else None
        if any(needed[:count]):
            found[:count] = _split(flat.T @ x.flatten(0, -2), weights)
        if any(needed[count:]):
            found[count:] = _split(flat.sum(0), weights)
        return dx, None, *(each if need else None for each, need in zip(found, needed, strict=True))


# -- in graphs -------------------------------------------------------------------------------------
def _multiply(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]
) -> torch.Tensor:
    return functional.linear(x, _joint_of(weights), _joint_of(biases) if biases else None)


def _pull(grad: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return grad @ _joint_of(weights)


def _fake_product(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], sum(len(each) for each in weights)))


def _fake_pulled(grad: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:-1], weights[0].shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weights, ctx.biases = inputs[0], inputs[1], len(inputs[2])
    ctx.save_for_backward(x, *weights)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, *weights = ctx.saved_tensors
    flat = grad.flatten(0, -2)
    dx = torch.ops.tuner.joint_linear_backward(grad, weights)
    found = _split(flat.T @ x.flatten(0, -2), weights)
    return dx, [*found], [*_split(flat.sum(0), weights)] if ctx.biases else []


for _name, _schema, _run, _fake in (
    ("joint_linear", "(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor", _multiply,
     _fake_product),
    ("joint_linear_backward", "(Tensor grad, Tensor[] weights) -> Tensor", _pull, _fake_pulled),
):  # fmt: skip
    torch.library.define(f"tuner::{_name}", _schema, tags=(torch.Tag.needs_exact_strides,))
    torch.library.impl(f"tuner::{_name}", "CompositeExplicitAutograd")(_run)
    torch.library.register_fake(f"tuner::{_name}")(_fake)
torch.library.register_autograd("tuner::joint_linear", _backward, setup_context=_save)


# -- calls -----------------------------------------------------------------------------------------
def run_joint(
    layers: Sequence[Any],
    x: torch.Tensor,
    alone: Callable[..., torch.Tensor] = functional.linear,
    then: Callable[[torch.Tensor], torch.Tensor] = lambda product: product,
) -> torch.Tensor | None:
    """The layers of x[..., k] side by side, [..., sum of rows], as one product.

    With gradients and in graphs, it is `then` of the product; without, `alone` of x, the joint
    weight, and the joint bias or None. None where the layers have to run one by one: they are not
    joined, have hooks, or are of another dtype.
    """
    if not layers or not all(is_bare(each, nn.Linear) for each in layers):
        return None
    if torch.compiler.is_compiling():
        if not getattr(layers[0], _MARK, False) or x.dtype != layers[0].weight.dtype:
            return None
        weights, biases = [each.weight for each in layers], [each.bias for each in layers]
        given = (x, weights, biases if biases[0] is not None else [])
        return then(torch.ops.tuner.joint_linear(*given))
    return _run_at_once(layers, x, alone, then)


def _run_at_once(
    layers: Sequence[Any],
    x: torch.Tensor,
    alone: Callable[..., torch.Tensor],
    then: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor | None:
    given = [each._parameters["weight"] for each in layers]
    biases = [each._parameters["bias"] for each in layers]
    if any(each is not None for each in biases):
        given += biases
    shapes = _find_places(layers, given, x.dtype)
    if not shapes or not takes_plain((x,)):
        return None
    needs = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in given))
    if needs:
        found: torch.Tensor = _JointLinear.apply(x, len(layers), *given)  # type: ignore[no-untyped-call]
        return then(found)
    joint = [
        each.detach().as_strided(*shape)
        for each, shape in zip(given[:: len(layers)], shapes, strict=True)
    ]
    return alone(x, *joint, *[None] * (2 - len(joint)))


def _find_places(layers: Sequence[Any], given: Sequence[Any], dtype: torch.dtype) -> _Shapes:
    """The joint weight and the joint bias; none where a product needs another dtype."""
    now = [
        each.data_ptr()
        for each in given
        if type(each) is nn.Parameter and each.dtype is dtype and each.is_contiguous()
    ]
    if len(now) != len(given):
        return []
    known: tuple[list[int], _Shapes] = vars(layers[0]).get(_PLACES, ([], []))
    if known[0] != now:
        joint = [_view_joint(parts) for parts in _parts_of(layers)]
        shapes = [(tuple(each.shape), each.stride()) for each in joint if each is not None]
        known = vars(layers[0])[_PLACES] = now, shapes if len(shapes) == len(joint) else []
    return known[1]


class JointHeads:
    """An attention module, of which some layers are known for one input; else the module."""

    def __init__(self, module: Any, x: torch.Tensor, known: dict[str, torch.Tensor]) -> None:
        own = vars(self)
        own.update(vars(module), _module=module)
        for name, found in known.items():
            own[name] = _known_layer(module._modules[name], x, found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _known_layer(layer: Any, x: torch.Tensor, found: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda given: found if given is x else layer(given)
