"""Codes of float8 and int8 with their scales."""

from __future__ import annotations

import torch
from torch.nn import functional

from search_spaces.errors import TunerError
from search_spaces.records import Value
from tuner.ops.operator import Operator
from tuner.ops.overriding import overridable
from tuner.ops.problem import Problem, as_rows, dtype_name

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
