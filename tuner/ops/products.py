"""Matrix products, linear layers and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from search_spaces.errors import TunerError
from search_spaces.kernels.images import WINDOW_DIMS, Windows, convolved
from search_spaces.records import Value
from tuner.ops import decompositions
from tuner.ops.choosing import ANY, numerics_of_calls, warn_of_torch
from tuner.ops.elements import activation as activate
from tuner.ops.operator import Operator, needs_gradient
from tuner.ops.overriding import overridable
from tuner.ops.problem import FLOATS, HALVES, Problem, as_rows, dtype_name

# -- codes of float8 and int8 with their scales ----------------------------------------------------
#: Codes, each with the largest of them.
_CODES = {"float8_e4m3fn": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
_SCALES = ("row", "block128", "tensor")
_GROUP = 128
#: The largest magnitude of a group is taken as this at least, so that no scale is 0.
_LEAST = 1e-12


def _quantize_problem(x: torch.Tensor, scales: str, to: str) -> Problem | None:
    if x.ndim != 2 or as_rows(x) is None:
        return None
    rows, cols = x.shape
    groups = {"row": (rows,), "tensor": (1,), "block128": (rows, -(-cols // _GROUP))}[scales]
    dims: dict[str, Value] = {"rows": rows, "cols": cols, "scales": scales, "to": to}
    dims["dtype"] = dtype_name(x)
    return Problem("quantize", dims, {"x": x}, {"q": x.shape, "scale": groups})


def _quantize_of_torch(x: torch.Tensor, scales: str, to: str) -> tuple[torch.Tensor, torch.Tensor]:
    (dtype, largest), (rows, cols) = _CODES[to], x.shape
    wide = x if x.dtype is torch.float64 else x.float()
    groups = wide.abs()
    if scales == "tensor":
        groups = groups.reshape(1, rows * cols)
    elif scales == "block128":
        blocks = (cols + _GROUP - 1) // _GROUP
        groups = functional.pad(groups, (0, -cols % _GROUP)).view(rows, blocks, _GROUP)
    if not groups.shape[-1]:
        groups = functional.pad(groups, (0, 1))
    scale = (groups.amax(-1).clamp_min(_LEAST) / largest).float()
    spread = scale[:, None]
    if scales == "block128":
        spread = scale.repeat_interleave(_GROUP, 1)[:, :cols]
    quotient = (wide / spread).float()
    return (quotient.round() if dtype is torch.int8 else quotient).to(dtype), scale


_quantize = Operator[tuple[torch.Tensor, torch.Tensor]](
    "quantize",
    "(Tensor x, str scales, str to) -> (Tensor, Tensor)",
    _quantize_of_torch,
    _quantize_problem,
)


@overridable()
def quantize(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, scales: str = "row"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a matrix and their float32 scales: x is about codes * scale.

    x[rows, cols]: floating point. dtype: float8_e4m3fn or int8. scales: what shares one: `row`,
    `block128` (128 elements of a row) or `tensor`. A NaN makes the scale of its group NaN.
    """
    name = next((name for name, (known, _) in _CODES.items() if known is dtype), None)
    if name is None or scales not in _SCALES or x.ndim != 2:
        raise TunerError(
            f"ops.quantize: {tuple(x.shape)} to {dtype} with scales={scales!r}",
            f"give a matrix, one of {', '.join(_CODES)}, and scales of {', '.join(_SCALES)}",
        )
    return _quantize(x, scales, name)


# -- matrix products, linear layers and convolutions -----------------------------------------------
def _are_matrices(*tensors: torch.Tensor) -> bool:
    """Whether these are contiguous and of one dtype that kernels take."""
    dtype = tensors[0].dtype
    if dtype not in FLOATS or any(each.dtype != dtype for each in tensors):
        return False
    return all(each.is_contiguous() for each in tensors)


def takes_tf32(x: torch.Tensor) -> bool:
    """Whether torch computes products of this tensor in TF32: kernels of float32 are exact."""
    if x.dtype is not torch.float32:
        return False
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set by `fp32_precision`, which torch does not read by this name
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# -- matmul ----------------------------------------------------------------------------------------
def _matmul_problem(a: torch.Tensor, b: torch.Tensor) -> Problem | None:
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0] or not _are_matrices(a, b):
        return None
    k, n = b.shape
    m = a.numel() // k
    dims: dict[str, Value] = {"M": m, "N": n, "K": k, "dtype": dtype_name(a)}
    return Problem(
        "matmul",
        dims,
        {"a": a.view(m, k), "b": b},
        {"out": (*a.shape[:-1], n)},
        replaced=("vendor", "vendor_tf32"),
    )


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, torch.Tensor)))


def _backward_of_matmul(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    rows = a.reshape(-1, a.shape[-1]).T
    return grad @ b.T, rows @ grad.reshape(-1, grad.shape[-1])


_matmul = Operator[torch.Tensor](
    "matmul",
    "(Tensor a, Tensor b) -> Tensor",
    torch.matmul,
    _matmul_problem,
    setup_context=_save_inputs,
    backward=_backward_of_matmul,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


@overridable(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """input @ other, as `torch.matmul`: kernels take a matrix as the second factor, and any first
    one of at least two dims."""
    if input.ndim < 2 or other.ndim != 2 or takes_tf32(input):
        warn_of_torch("matmul of a vector, of batches or in TF32")
        return torch.matmul(input, other)
    return _matmul(input, other)


# -- linear ----------------------------------------------------------------------------------------
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "swiglu": lambda x: functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


def _linear_problem(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> Problem | None:
    parts = [x, weight] if bias is None else [x, weight, bias]
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:] or not _are_matrices(*parts):
        return None
    if bias is None and activation == "none" and numerics_of_calls() == ANY:
        return None  # a library's, but for its bits
    rows, k = weight.shape
    m, n = x.numel() // k, rows // 2 if activation == "swiglu" else rows
    dims: dict[str, Value] = {
        "M": m,
        "N": n,
        "K": k,
        "epilogue": activation,
        "bias": bias is not None,
    }
    tensors = {"a": x.view(m, k), "w": weight} | ({} if bias is None else {"bias": bias})
    outputs = {"out": (*x.shape[:-1], n)}
    dims["dtype"] = dtype_name(x)
    return Problem("linear", dims, tensors, outputs, in_parts=activation != "none")


def _activate(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    return _ACTIVATIONS[activation](functional.linear(input, weight, bias))


def _activate_by_kernel(arguments: Sequence[Any]) -> torch.Tensor:
    """torch's product, and the activation as an operator."""
    *given, activation = arguments
    product = functional.linear(*given)
    return product if activation == "none" else activate(product, activation)


_linear = Operator[torch.Tensor](
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    _activate,
    _linear_problem,
    autocast="lower",
    eagerly=_activate_by_kernel,
    least_gain=decompositions.UNFUSED,
)


def _backward_of_linear(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, *bias = ctx.saved_tensors
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ weight, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0) if bias else None


#: Of other numerics: with gradients, the activation is apart.
_plain_linear = Operator[torch.Tensor](
    "plain_linear",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    functional.linear,
    lambda x, weight, bias: _linear_problem(x, weight, bias, "none"),
    setup_context=_save_inputs,
    backward=_backward_of_linear,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


@overridable(_activate, functional.linear)
def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """activation(input @ weight.T + bias), as `torch.nn.functional.linear`.

    activation: none, gelu (exact), silu, or swiglu, whose weight has the gate's rows first and
    then the value's.
    """
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise TunerError(f"ops.linear: activation is {activation!r}", f"use one of {known}")
    apart = activation == "none" or needs_gradient((input, weight, bias))
    if apart and numerics_of_calls() != ANY and not takes_tf32(input):
        return _ACTIVATIONS[activation](_plain_linear(input, weight, bias))
    if needs_gradient((input, weight, bias)) and not torch.compiler.is_compiling():
        # What the activation is of is saved for its gradient: the product is torch's.
        return _activate_by_kernel((input, weight, bias, activation))
    if takes_tf32(input) or (activation == "none" and bias is None):
        return _activate(input, weight, bias, activation)
    return _linear(input, weight, bias, activation)


# -- convolution -----------------------------------------------------------------------------------
def _conv_problem(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding_h: int, padding_w: int,
    dilation: int, groups: int,
) -> Problem | None:  # fmt: skip
    if x.dtype not in HALVES or not _are_matrices(x, weight) or stride < 1 or groups < 1:
        return None
    batch, height, width, channels = x.shape
    out_channels, kernel_h, kernel_w, group_in = weight.shape
    if group_in * groups != channels:
        return None
    taps = (kernel_h, kernel_w, stride, padding_h, padding_w, dilation)
    windows = Windows(batch, height, width, *taps)
    dims: dict[str, Value] = {
        "batch": batch,
        "height": height,
        "width": width,
        "in_channels": channels,
        "out_channels": out_channels,
        **dict(zip(WINDOW_DIMS, taps, strict=True)),
        "groups": groups,
        "dtype": dtype_name(x),
    }
    outputs = {"out": (batch, windows.out_height, windows.out_width, out_channels)}
    return Problem("convolution", dims, {"x": x, "weight": weight}, outputs)


def _conv_of_torch(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding_h: int, padding_w: int,
    dilation: int, groups: int,
) -> torch.Tensor:  # fmt: skip
    (batch, height, width, _), (_, kernel_h, kernel_w, _) = x.shape, weight.shape
    taps = (kernel_h, kernel_w, stride, padding_h, padding_w, dilation)
    return convolved(x, weight, Windows(batch, height, width, *taps), groups)


def _conv_shape(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding_h: int, padding_w: int,
    dilation: int, groups: int,
) -> torch.Tensor:  # fmt: skip
    """The result without data: torch's own would choose an algorithm by the number of images."""
    few = x.new_empty(()).expand(1, *x.shape[1:])
    one = _conv_of_torch(few, weight, stride, padding_h, padding_w, dilation, groups)
    return one.new_empty((x.shape[0], *one.shape[1:]))


#: Of x[batch, height, width, channels] and weight[out_channels, kernel_h, kernel_w, channels /
#: groups], which are the layouts of channels_last.
_conv2d = Operator[torch.Tensor](
    "conv2d",
    "(Tensor x, Tensor weight, int stride, int padding_h, int padding_w, int dilation, int groups)"
    " -> Tensor",
    _conv_of_torch,
    _conv_problem,
    fake=_conv_shape,
    autocast="lower",
    least_gain=decompositions.UNFUSED,
)


@overridable(functional.conv2d)
def conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Convolution of images, as `torch.nn.functional.conv2d`.

    Kernels take images and weights in the memory format channels_last, no bias, and one stride and
    dilation for both directions. With gradients, torch runs.
    """
    last = torch.channels_last
    if input.ndim == 4 == weight.ndim and bias is None and not isinstance(padding, str):
        (stride_h, stride_w), (dilation_h, dilation_w) = _pair(stride), _pair(dilation)
        formats = input.is_contiguous(memory_format=last)
        formats = formats and weight.is_contiguous(memory_format=last)
        if formats and stride_h == stride_w and dilation_h == dilation_w:
            images, weights = input.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
            found = _conv2d(images, weights, stride_h, *_pair(padding), dilation_h, groups)
            return found.permute(0, 3, 1, 2)
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


# -- float8 ----------------------------------------------------------------------------------------
def _scaled_problem(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> Problem | None:
    contiguous = all(each.is_contiguous() for each in (a, b, a_scale, b_scale))
    if a.ndim != 2 or b.ndim != 2 or a.dtype is not torch.float8_e4m3fn or not contiguous:
        return None
    (m, k), n = a.shape, b.shape[0]
    dims: dict[str, Value] = {"M": m, "N": n, "K": k, "scales": "row", "dtype": dtype_name(a)}
    tensors = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}
    return Problem("fp8_matmul", dims, tensors, {"out": (m, n)})


def _scaled_product(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    if a.device.type == "cuda" and a.shape[0] and all(s and not s % 16 for s in b.shape):
        return torch._scaled_mm(
            a, b.T, scale_a=a_scale[:, None], scale_b=b_scale[None, :], out_dtype=torch.bfloat16
        )
    wide = ((codes.float() * scale[:, None]).bfloat16()
            for codes, scale in ((a, a_scale), (b, b_scale)))  # fmt: skip
    return torch.matmul(*(each if at == 0 else each.T for at, each in enumerate(wide)))


_scaled_matmul = Operator[torch.Tensor](
    "scaled_matmul",
    "(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor",
    _scaled_product,
    _scaled_problem,
    least_gain=decompositions.UNFUSED,
)


@overridable()
def fp8_linear(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """x @ (weight * weight_scale).T in float8, with a scale for each row of x and of the weight.

    x[..., K]: floating point, quantized here. weight[N, K] and weight_scale[N]: as `ops.quantize`
    makes them. The result is bfloat16.
    """
    codes, scale = quantize(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    found: torch.Tensor = _scaled_matmul(codes, weight, scale, weight_scale)
    return found.view(*x.shape[:-1], weight.shape[0])
