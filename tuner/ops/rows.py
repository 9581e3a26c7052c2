"""Operators over the last dim: softmax and normalisations, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from search_spaces.records import Value
from tuner.ops.moments import row_moments
from tuner.ops.operator import FLOAT32, TORCHS, Operator, policy_of
from tuner.ops.overriding import overridable
from tuner.ops.problem import PLAIN, Problem, are_vectors, as_rows, dtype_name, strided_rows

#: The eps of kernels whose workload names none.
_EPS = 1e-5


# -- softmax ---------------------------------------------------------------------------------------
def _softmax_problem(x: torch.Tensor) -> Problem | None:
    if (given := strided_rows(x)) is None:
        return None
    (rows, cols), strided = given.shape, not x.is_contiguous()
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "dtype": dtype_name(x)}
    kernel = "softmax"
    if cols > _MOST_HELD:
        if strided:
            return None
        kernel, dims = "online_softmax", {**dims, "log": False, "mask": "none"}
    return Problem(kernel, dims, {"x": given}, {"out": x.shape}, strided=strided)


#: Columns that the kernel `softmax` takes at most.
_MOST_HELD = 32768


def _log_softmax_problem(x: torch.Tensor) -> Problem | None:
    sizes = as_rows(x)
    if sizes is None:
        return None
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    dims |= {"log": True, "mask": "none"}
    return Problem("online_softmax", dims, {"x": x.view(sizes)}, {"out": x.shape})


def _softmax_backward_problem(y: torch.Tensor, dy: torch.Tensor, log: bool) -> Problem | None:
    sizes = as_rows(y, dy)
    if sizes is None:
        return None
    dims: dict[str, Value] = {
        "rows": sizes[0],
        "cols": sizes[1],
        "dtype": dtype_name(y),
        "log": log,
    }
    tensors = {"y": y.view(sizes), "dy": dy.view(sizes)}
    return Problem("softmax_backward", dims, tensors, {"dx": y.shape})


def _softmax_gradient(y: torch.Tensor, dy: torch.Tensor, log: bool) -> torch.Tensor:
    gradient = torch._log_softmax_backward_data if log else torch._softmax_backward_data
    found: torch.Tensor = gradient(dy, y, -1, y.dtype)
    return found


def _save_output(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _backward_of_softmax(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _softmax_backward(ctx.saved_tensors[0], grad.contiguous(), False)


def _backward_of_log_softmax(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _softmax_backward(ctx.saved_tensors[0], grad.contiguous(), True)


_softmax_backward = Operator[torch.Tensor](
    "softmax_backward",
    "(Tensor y, Tensor dy, bool log) -> Tensor",
    _softmax_gradient,
    _softmax_backward_problem,
)
_softmax = Operator[torch.Tensor](
    "softmax",
    "(Tensor x) -> Tensor",
    lambda x: torch.softmax(x, -1),
    _softmax_problem,
    setup_context=_save_output,
    backward=_backward_of_softmax,
    autocast="float32",
)
_log_softmax = Operator[torch.Tensor](
    "log_softmax",
    "(Tensor x) -> Tensor",
    lambda x: torch.log_softmax(x, -1),
    _log_softmax_problem,
    setup_context=_save_output,
    backward=_backward_of_log_softmax,
    autocast="float32",
)


def _torchs_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return torch.softmax(input, dim, dtype)


def _torchs_log_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return torch.log_softmax(input, dim, dtype)


@overridable(_torchs_softmax, torch.softmax, functional.softmax, torch.Tensor.softmax)
def softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax over a dim, as `torch.softmax`: kernels take the last one.

    dtype: the input is cast to it before.
    """
    if input.ndim == 0 or dim not in (-1, input.ndim - 1):
        return torch.softmax(input, dim, dtype)
    return _softmax(input if dtype is None else input.to(dtype))


@overridable(
    _torchs_log_softmax, torch.log_softmax, functional.log_softmax, torch.Tensor.log_softmax
)
def log_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The logarithm of the softmax over a dim, as `torch.log_softmax`."""
    if input.ndim == 0 or dim not in (-1, input.ndim - 1):
        return torch.log_softmax(input, dim, dtype)
    return _log_softmax(input if dtype is None else input.to(dtype))


# -- normalisation ---------------------------------------------------------------------------------
def _norm_dims(x: torch.Tensor, sizes: Sequence[int], eps: float) -> dict[str, Value]:
    dims: dict[str, Value] = {"rows": sizes[0], "cols": sizes[1], "dtype": dtype_name(x)}
    return dims if eps == _EPS else {**dims, "eps": eps}


def _rms_norm_problem(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Problem | None:
    rows = strided_rows(x)
    if rows is None or not are_vectors(rows.shape[1], x, weight) or eps <= 0:
        return None
    tensors, dims = {"x": rows, "weight": weight}, _norm_dims(x, rows.shape, eps)
    return Problem("rms_norm", dims, tensors, {"out": x.shape}, strided=not x.is_contiguous())


def _layer_norm_problem(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> Problem | None:
    rows = strided_rows(x)
    if rows is None or not are_vectors(rows.shape[1], x, weight, bias) or eps <= 0:
        return None
    tensors = {"x": rows, "weight": weight, "bias": bias}
    dims, strided = _norm_dims(x, rows.shape, eps), not x.is_contiguous()
    return Problem("layer_norm", dims, tensors, {"out": x.shape}, strided=strided)


def _norm_backward_problem(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor | None,
) -> Problem | None:
    sizes = as_rows(x, dy)
    if sizes is None or not are_vectors(sizes[1], x, weight):
        return None
    kind = "rms_norm" if mean is None else "layer_norm"
    dims: dict[str, Value] = {
        "rows": sizes[0],
        "cols": sizes[1],
        "kind": kind,
        "dtype": dtype_name(x),
    }
    tensors = {"x": x.view(sizes), "dy": dy.view(sizes), "weight": weight, "rstd": rstd}
    outputs: dict[str, tuple[int, ...]] = {"dx": x.shape, "dweight": weight.shape}
    if mean is not None:
        tensors["mean"], outputs["dbias"] = mean, weight.shape
    return Problem("norm_backward", dims, tensors, outputs)


def _norm_gradients(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """The gradients of a normalisation in float32, or in float64 for that dtype."""
    gpu = type(x) in PLAIN and x.is_cuda and x.numel() and not torch.is_grad_enabled()
    if gpu and (mean is not None or _rms_backward is not None):
        return _norm_gradients_of_torch(x, dy, weight, rstd, mean)
    rows = (-1, x.shape[-1])
    wide = torch.promote_types(x.dtype, torch.float32)
    x_, dy_ = x.reshape(rows).to(wide), dy.reshape(rows).to(wide)
    normed = (x_ if mean is None else x_ - mean[:, None]) * rstd[:, None]
    dn = dy_ * weight.to(wide)
    inner = dn - normed * (dn * normed).mean(1, keepdim=True)
    if mean is not None:
        inner = inner - dn.mean(1, keepdim=True)
    found = [(inner * rstd[:, None]).reshape(x.shape).to(x.dtype), (dy_ * normed).sum(0)]
    if mean is not None:
        found.append(dy_.sum(0))
    return (found[0], *(each.to(weight.dtype) for each in found[1:]))


def _norm_gradients_of_torch(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """By the functions that autograd calls on a GPU, which have no gradients themselves."""
    saved, shape = (*x.shape[:-1], 1), x.shape[-1:]
    if mean is None:
        return tuple(_rms_backward(dy, x, shape, rstd.view(saved), weight, [True, True]))
    statistics = mean.view(saved), rstd.view(saved)
    return tuple(_layer_backward(dy, x, shape, *statistics, weight, weight, [True, True, True]))


#: Overloads, since torch looks for one in each call otherwise. None before torch has it.
_rms_backward: Any = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
_rms_backward = _rms_backward and _rms_backward.default
_layer_backward: Any = torch.ops.aten.native_layer_norm_backward.default


_norm_backward = Operator[tuple[torch.Tensor, ...]](
    "norm_backward",
    "(Tensor x, Tensor dy, Tensor weight, Tensor rstd, Tensor? mean) -> Tensor[]",
    _norm_gradients,
    _norm_backward_problem,
)


def _save_rms(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _save_layer(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, _, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward_of_rms_norm(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    x = x.contiguous()
    (rstd,) = row_moments(x, ctx.eps, centred=False)
    dx, dweight = _norm_backward(x, grad.contiguous(), weight, rstd, None)
    return dx, dweight, None


def _backward_of_layer_norm(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    x = x.contiguous()
    rstd, mean = row_moments(x, ctx.eps, centred=True)
    dx, dweight, dbias = _norm_backward(x, grad.contiguous(), weight, rstd, mean)
    return dx, dweight, dbias, None


_rms_norm = Operator[torch.Tensor](
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> Tensor",
    lambda x, weight, eps: functional.rms_norm(x, (x.shape[-1],), weight, eps),
    _rms_norm_problem,
    setup_context=_save_rms,
    backward=_backward_of_rms_norm,
    autocast=policy_of("aten::rms_norm", FLOAT32),
)
_layer_norm = Operator[torch.Tensor](
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    lambda x, weight, bias, eps: functional.layer_norm(x, (x.shape[-1],), weight, bias, eps),
    _layer_norm_problem,
    setup_context=_save_layer,
    backward=_backward_of_layer_norm,
    autocast="float32",
)


def _fits(input: torch.Tensor, normalized_shape: Sequence[int], *parameters: torch.Tensor) -> bool:
    """Whether all parameters have the shape, which is that of the last dims of the input."""
    shape = tuple(normalized_shape)
    if not shape or input.shape[input.ndim - len(shape) :] != shape:
        return False
    for each in parameters:  # noqa: SIM110 (a generator takes three times as long)
        if each.shape != shape:
            return False
    return True


@overridable(functional.rms_norm)
def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """input / sqrt(mean(input**2) + eps) * weight over the last dims, as
    `torch.nn.functional.rms_norm`.

    eps: by default torch's own. Kernels take calls with weight and eps.
    """
    if weight is None or eps is None or not _fits(input, normalized_shape, weight):
        return functional.rms_norm(input, normalized_shape, weight, eps)
    if weight.ndim == 1:
        return _rms_norm(input, weight, eps)
    return _rms_norm(input.flatten(-weight.ndim), weight.flatten(), eps).view(input.shape)


@overridable(functional.layer_norm)
def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Layer norm over the last dims, as `torch.nn.functional.layer_norm`."""
    if weight is None or bias is None or not _fits(input, normalized_shape, weight, bias):
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    if weight.ndim == 1:
        return _layer_norm(input.contiguous(), weight, bias, eps)  # torch copies the input as well
    rows, vectors = input.flatten(-weight.ndim), (weight.flatten(), bias.flatten())
    return _layer_norm(rows, *vectors, eps).view(input.shape)


def _add_norm_problem(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Problem | None:
    sizes = as_rows(x, residual)
    if sizes is None or not are_vectors(sizes[1], x, weight) or eps <= 0:
        return None
    dims = _norm_dims(x, sizes, eps) | {"kind": "rms_norm", "to": "same"}
    tensors = {"x": x.view(sizes), "residual": residual.view(sizes), "weight": weight}
    return Problem("add_norm", dims, tensors, {"out": x.shape, "residual_out": x.shape})


def _add_norm_of_torch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return functional.rms_norm(total, (x.shape[-1],), weight, eps), total


def _save_add_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _backward_of_add_norm(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
    total, weight = ctx.saved_tensors
    (rstd,) = row_moments(total, ctx.eps, centred=False)
    dx, dweight = _norm_backward(total, grads[0].contiguous(), weight, rstd, None)
    dx = dx + grads[1] if torch.is_grad_enabled() else dx.add_(grads[1])
    return dx, dx, dweight, None


_add_rms_norm = Operator[tuple[torch.Tensor, torch.Tensor]](
    "add_rms_norm",
    "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    _add_norm_of_torch,
    _add_norm_problem,
    setup_context=_save_add_norm,
    backward=_backward_of_add_norm,
    autocast=policy_of("aten::rms_norm", TORCHS),
)


@overridable()
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm(x + residual, weight, eps)` and the sum itself, which is the next residual.

    x, residual: of one shape and dtype. weight: of the last dim. The sum is rounded to the dtype
    before it is normalised.
    """
    return _add_rms_norm(x, residual, weight, eps)
