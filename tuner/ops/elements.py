"""Functions of single elements, group norm of images, and the nearest of some centers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from search_spaces.errors import TunerError
from search_spaces.kernels.activation_backward.kernel import gradient_of
from search_spaces.records import Value
from tuner.ops import decompositions
from tuner.ops.group_gradients import group_gradients
from tuner.ops.moments import row_moments
from tuner.ops.operator import WIDE, Operator
from tuner.ops.overriding import overridable
from tuner.ops.problem import Problem, are_vectors, as_rows, dtype_name

# -- activations -----------------------------------------------------------------------------------
_PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_GATED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "swiglu": lambda gate, value: functional.silu(gate) * value,
    "geglu": lambda gate, value: functional.gelu(gate) * value,
}


def _activation_problem(x: torch.Tensor, function: str) -> Problem | None:
    sizes = as_rows(x)
    gated = function in _GATED
    if sizes is None or (gated and sizes[1] % 2):
        return None
    rows, width = sizes
    cols = width // 2 if gated else width
    dims: dict[str, Value] = {
        "rows": rows,
        "cols": cols,
        "function": function,
        "dtype": dtype_name(x),
    }
    return Problem("activation", dims, {"x": x.view(sizes)}, {"out": (*x.shape[:-1], cols)})


def _activation_of_torch(x: torch.Tensor, function: str) -> torch.Tensor:
    if function in _GATED:
        gate, value = x.chunk(2, -1)
        return _GATED[function](gate, value)
    return _PLAIN[function](x)


def _activation_gradient(x: torch.Tensor, dy: torch.Tensor, function: str) -> torch.Tensor:
    return gradient_of(function, x, dy)


def _activation_backward_problem(
    x: torch.Tensor, dy: torch.Tensor, function: str
) -> Problem | None:
    found, sizes = _activation_problem(x, function), as_rows(dy)
    if found is None or sizes is None or dy.dtype != x.dtype or dy.shape != found.outputs["out"]:
        return None
    tensors = {**found.tensors, "dy": dy.view(sizes)}
    return Problem("activation_backward", found.dims, tensors, {"dx": x.shape})


_activation_backward = Operator[torch.Tensor](
    "activation_backward",
    "(Tensor x, Tensor dy, str function) -> Tensor",
    _activation_gradient,
    _activation_backward_problem,
)


def _save_activated(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, ctx.function = inputs
    ctx.save_for_backward(x)


def _backward_of_activation(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _activation_backward(ctx.saved_tensors[0], grad.contiguous(), ctx.function), None


_activation = Operator[torch.Tensor](
    "activation",
    "(Tensor x, str function) -> Tensor",
    _activation_of_torch,
    _activation_problem,
    setup_context=_save_activated,
    backward=_backward_of_activation,
)


@overridable()
def activation(x: torch.Tensor, function: str) -> torch.Tensor:
    """gelu (exact), gelu_tanh, silu, relu, sigmoid or tanh of every element; or, of x[..., 2 n],
    the gated swiglu or geglu of its halves, the gate first."""
    if function not in _PLAIN and function not in _GATED:
        known = ", ".join([*_PLAIN, *_GATED])
        raise TunerError(f"ops.activation: function is {function!r}", f"use one of {known}")
    return _activation(x, function)


@overridable(functional.gelu)
def _gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate not in ("none", "tanh"):
        return functional.gelu(input, approximate=approximate)
    return _activation(input, "gelu" if approximate == "none" else "gelu_tanh")


@overridable(functional.silu)
def _silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return functional.silu(input, inplace) if inplace else _activation(input, "silu")


@overridable()
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * value of x[..., 2 n], whose first half is the gate."""
    return activation(x, "swiglu")


# -- group norm ------------------------------------------------------------------------------------
def _group_norm_problem(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float, last: bool
) -> Problem | None:
    channels = x.shape[-1 if last else 1] if x.ndim > 2 else 0
    if not channels or as_rows(x) is None or not are_vectors(channels, x, weight, bias):
        return None
    batch, size = x.shape[0], x.numel()
    if eps <= 0 or groups < 1 or channels % groups or size == groups:  # one value each
        return None
    flat = x.view(batch, -1, channels) if last else x.view(batch, channels, -1)
    dims: dict[str, Value] = {"batch": batch, "channels": channels}
    dims |= {"pixels": flat.shape[1 if last else 2], "groups": groups}
    dims |= {"layout": "nhwc" if last else "nchw", "dtype": dtype_name(x)}
    dims |= {} if eps == 1e-5 else {"eps": eps}
    tensors = {"x": flat, "weight": weight, "bias": bias}
    return Problem("group_norm", dims, tensors, {"out": x.shape})


def _group_norm_of_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float, last: bool
) -> torch.Tensor:
    if not last:
        return functional.group_norm(x, groups, weight, bias, eps)
    found = functional.group_norm(x.movedim(-1, 1), groups, weight, bias, eps)
    return found.movedim(1, -1).contiguous()


def _save_groups(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, ctx.groups, ctx.eps, ctx.last = inputs
    ctx.save_for_backward(x, weight, bias)


def _backward_of_group_norm(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    if torch.is_grad_enabled():  # neither kernel has a gradient
        needed = [each for each in ctx.saved_tensors if each.requires_grad]
        out = _group_norm_of_torch(x, weight, bias, ctx.groups, ctx.eps, ctx.last)
        found = iter(torch.autograd.grad(out, needed, grad, create_graph=True))
        return *(next(found) if e.requires_grad else None for e in ctx.saved_tensors), *[None] * 3
    if ctx.last:
        x, grad = x.movedim(-1, 1), grad.movedim(-1, 1)
    given = grad.contiguous(), x.contiguous(), weight, ctx.groups, ctx.eps
    dx, *others = group_gradients(*given) or _group_gradients_of_torch(*given)
    return dx.movedim(1, -1) if ctx.last else dx, *others, *[None] * 3


def _group_gradients_of_torch(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, ...]:
    """By torch's own kernel, which takes the moments in the dtype of x."""
    batch, channels = x.shape[:2]
    rstd, mean = row_moments(x.view(batch * groups, -1), eps, centred=True)
    saved = [each.to(x.dtype).view(batch, groups) for each in (mean, rstd)]
    shape = batch, channels, x.numel() // (batch * channels), groups
    backward = torch.ops.aten.native_group_norm_backward
    return tuple(backward(dy, x, *saved, weight, *shape, [True, True, True]))


#: last: of x[batch, ..., channels], the layout of channels_last; else of x[batch, channels, ...].
_group_norm = Operator[torch.Tensor](
    "group_norm",
    "(Tensor x, Tensor weight, Tensor bias, int groups, float eps, bool last) -> Tensor",
    _group_norm_of_torch,
    _group_norm_problem,
    setup_context=_save_groups,
    backward=_backward_of_group_norm,
    autocast="float32",
)


@overridable(functional.group_norm)
def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Group norm of images, as `torch.nn.functional.group_norm`. The result has the memory format
    of the input, channels_last too, which torch's has on a CPU alone."""
    if weight is None or bias is None:
        return functional.group_norm(input, num_groups, weight, bias, eps)
    given = weight, bias, num_groups, eps
    images = input.ndim == 4 and not input.is_contiguous()
    if images and input.is_contiguous(memory_format=torch.channels_last):
        return _group_norm(input.permute(0, 2, 3, 1), *given, True).permute(0, 3, 1, 2)
    return _group_norm(input, *given, False)


# -- nearest center --------------------------------------------------------------------------------
def _nearest_problem(x: torch.Tensor, centers: torch.Tensor) -> Problem | None:
    tensors = {"x": x, "centers": centers}
    if any(each.ndim != 2 or as_rows(each) is None for each in tensors.values()):
        return None
    if x.dtype != centers.dtype or x.shape[1] != centers.shape[1]:
        return None
    rows, dim = x.shape
    dims: dict[str, Value] = {
        "rows": rows,
        "centers": centers.shape[0],
        "dim": dim,
        "dtype": dtype_name(x),
    }
    return Problem("nearest_center", dims, tensors, {"index": (rows,), "distance": (rows,)})


def _nearest_of_torch(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    # torch's own choice depends on the rows too, of which a graph may have any number.
    mode = ("donot_" if centers.shape[:1] <= (25,) else "") + "use_mm_for_euclid_dist"
    distance, index = torch.cdist(x.to(wide), centers.to(wide), compute_mode=mode).min(1)
    return index, (distance * distance).float()


_nearest_center = Operator[tuple[torch.Tensor, torch.Tensor]](
    "nearest_center",
    "(Tensor x, Tensor centers) -> (Tensor, Tensor)",
    _nearest_of_torch,
    _nearest_problem,
    autocast=WIDE,
    least_gain=decompositions.UNFUSED,
)


@overridable()
def nearest_center(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index (int64) of the nearest center of each point, and its squared distance (float32).

    x[rows, dim], centers[count, dim]: of one dtype. A step of k-means.
    """
    return _nearest_center(x, centers)
