"""Groups of a matrix in torch: largest magnitudes, and scales spread over the elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GROUP = 128


def largest_magnitudes(x: torch.Tensor, scales: str) -> torch.Tensor:
    """The largest magnitude of each group of x[rows, cols], in the dtype of x."""
    import torch

    if scales == "tensor":
        return x.abs().amax().reshape(1)
    if scales == "row":
        return x.abs().amax(1)
    rows, cols = x.shape
    padded = torch.nn.functional.pad(x, (0, -cols % _GROUP))
    return padded.view(rows, -1, _GROUP).abs().amax(2)


def spread(scale: torch.Tensor, shape: tuple[int, ...], scales: str) -> torch.Tensor:
    """Scales in a shape that multiplies a matrix of `shape`."""
    if scales == "tensor":
        return scale
    if scales == "row":
        return scale[:, None]
    return scale.repeat_interleave(_GROUP, 1)[:, : shape[1]]
