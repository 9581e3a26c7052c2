"""Codes of one byte, each a number of a group's scale; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.records import TensorSpec
from search_spaces.tensors import random_tensor

if TYPE_CHECKING:
    import torch

FLOAT8 = "float8_e4m3fn"
#: The dtypes of codes, and the largest number of each.
LARGEST_CODE = {FLOAT8: 448.0, "int8": 127.0}
#: The root mean square of the codes that are drawn here.
_USUAL_CODE = {FLOAT8: 100.0, "int8": 73.0}


def random_codes(
    shape: tuple[int, ...], dtype: str, source: torch.Generator | None, device: str
) -> torch.Tensor:
    """Codes of normal values, or uniform int8; float8 has no infinity, so none is beyond 448."""
    usual, largest = _USUAL_CODE[dtype], LARGEST_CODE[dtype]
    if device == "meta" or dtype == "int8":
        return random_tensor(TensorSpec(shape, dtype), source, device, limits=(-127, 128))
    import torch

    wide = random_tensor(TensorSpec(shape, "float32"), source, device, scale=usual)
    return wide.clamp_(-largest, largest).to(torch.float8_e4m3fn)


def random_scales(
    shape: tuple[int, ...],
    dtype: str,
    source: torch.Generator | None,
    device: str,
    factor: float = 1.0,
) -> torch.Tensor:
    """Positive float32 scales of such codes, so that values are of the order of `factor`."""
    usual = factor / _USUAL_CODE[dtype]
    scale = random_tensor(TensorSpec(shape, "float32"), source, device, scale=usual)
    # None is close to zero.
    return scale if device == "meta" else scale.abs_().add_(0.5 * usual)
