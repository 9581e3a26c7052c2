"""Codes of float8 and int8 with their scales."""

from __future__ import annotations

import torch

from search_spaces import registry
from search_spaces.errors import TunerError
from search_spaces.records import Workload
from tuner.ops.operator import Operator
from tuner.ops.problem import Problem, as_rows, dtype_name

_CODES = {"float8_e4m3fn": torch.float8_e4m3fn, "int8": torch.int8}
_SCALES = ("row", "block128", "tensor")


def _dims(x: torch.Tensor, scales: str, to: str) -> dict[str, int | str]:
    rows = x.numel() // x.shape[-1]
    return {"rows": rows, "cols": x.shape[-1], "scales": scales, "to": to, "dtype": dtype_name(x)}


def _quantize_problem(x: torch.Tensor, scales: str, to: str) -> Problem | None:
    if x.ndim != 2 or as_rows(x) is None:
        return None
    rows, cols = x.shape
    groups = {"row": (rows,), "tensor": (1,), "block128": (rows, -(-cols // 128))}[scales]
    return Problem("quantize", _dims(x, scales, to), {"x": x}, {"q": x.shape, "scale": groups})


def _quantize_of_torch(x: torch.Tensor, scales: str, to: str) -> tuple[torch.Tensor, torch.Tensor]:
    eager = registry.load("quantize").eager(Workload.from_mapping(_dims(x, scales, to)))
    q, scale = eager(x)
    return q, scale


_quantize = Operator[tuple[torch.Tensor, torch.Tensor]](
    "quantize",
    "(Tensor x, str scales, str to) -> (Tensor, Tensor)",
    _quantize_of_torch,
    _quantize_problem,
)


def quantize(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, scales: str = "row"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a matrix and their float32 scales: x is about codes * scale.

    x[rows, cols]: float32, float16 or bfloat16. dtype: float8_e4m3fn or int8. scales: what shares
    one: `row`, `block128` (128 elements of a row) or `tensor`.
    """
    name = next((name for name, known in _CODES.items() if known is dtype), None)
    if name is None or scales not in _SCALES or x.ndim != 2:
        raise TunerError(
            f"ops.quantize: {tuple(x.shape)} to {dtype} with scales={scales!r}",
            f"give a matrix, one of {', '.join(_CODES)}, and scales of {', '.join(_SCALES)}",
        )
    return _quantize(x, scales, name)
