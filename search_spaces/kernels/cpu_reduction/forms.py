"""Forms of a reduction along one axis of a matrix.

bfloat16 is widened to float32 and int8 to int32 before sums, as torch's own kernels do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.kernels.cpu_forms import folded_max, folded_sum

if TYPE_CHECKING:
    import torch

    from search_spaces.kernels.cpu_forms import Form


def library(operation: str, axis: int) -> Form:
    """What torch's users write; sums of int8 are int32."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        import torch

        if operation == "sum":
            return x.sum(axis, dtype=torch.int32 if x.dtype == torch.int8 else None)
        return x.amax(axis) if operation == "max" else x.argmax(axis)

    return reduced


def folded(operation: str, fold: int) -> Form:
    """Sum or maximum of rows, with `fold` parts of a row in one step of the loop."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        if operation == "max":
            return folded_max(x, fold)[:, 0]
        return _narrow(folded_sum(_wide(x), fold)[:, 0], x)

    return reduced


def in_parts(operation: str, axis: int, parts: int) -> Form:
    """Sum or maximum of `parts` equal parts of the axis, then of the parts' results."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        rows, cols = x.shape
        split = (
            x.view(rows, parts, cols // parts) if axis == 1 else x.view(parts, rows // parts, cols)
        )
        # After the first reduction, the parts are along the axis itself.
        if operation == "max":
            return split.amax(axis + 1).amax(axis)
        return _narrow(_sum(_sum(_wide(split), axis + 1), axis), x)

    return reduced


def two_pass(axis: int, fold: int) -> Form:
    """The first place of the largest value: the value, then the least place that has it."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        import torch

        length = x.shape[axis]
        place = torch.arange(length, dtype=torch.int32)
        most = folded_max(x, fold) if axis == 1 else x.amax(0, keepdim=True)
        at = torch.where(x == most, place if axis == 1 else place[:, None], length)
        return at.amin(axis).to(torch.int64)

    return reduced


def product(axis: int) -> Form:
    """Sums as a product of the matrix with a vector of ones, by BLAS."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        import torch

        matrix = x if axis == 1 else x.t()
        return torch.mv(matrix, torch.ones(matrix.shape[1], dtype=x.dtype))

    return reduced


def _wide(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x.to(torch.int32) if x.dtype == torch.int8 else x.float()


def _sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """A sum in the dtype of x; torch would widen int32 to int64."""
    return x.sum(axis, dtype=x.dtype)


def _narrow(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return total.to(x.dtype) if x.dtype.is_floating_point else total
