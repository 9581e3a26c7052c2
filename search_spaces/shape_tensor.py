"""Tensors without storage for builders that have not loaded torch.

Compiling a Triton variant needs shapes, strides and dtypes only. Importing torch takes seconds,
Triton a third of one: a builder without torch compiles while the device process still imports it.
A `ShapeTensor` answers what launches and Triton ask of a tensor on torch's `meta` device, and the
artifact has the same identity as one that was built with torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from search_spaces.records import TensorSpec

_FLOATS = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
_INTEGERS = {
    "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip

_BYTES = _FLOATS | _INTEGERS


@dataclass(frozen=True, slots=True)
class ShapeDtype:
    """A dtype under torch's name; printed as torch prints it, by which Triton knows it."""

    name: str

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _BYTES[self.name]

    @property
    def is_floating_point(self) -> bool:
        return self.name in _FLOATS

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class _Meta:
    """The device `meta`."""

    type: str = "meta"
    index: None = None


class ShapeTensor:
    """A contiguous tensor of a shape and dtype on the device `meta`; it has no elements."""

    device = _Meta()
    is_cuda = False

    def __init__(
        self, shape: tuple[int, ...], dtype: ShapeDtype, base: ShapeTensor | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        #: The tensor that this one is a view of, as torch names it.
        self._base = base

    def stride(self, dim: int | None = None) -> Any:
        """Elements between neighbours in every dimension, or in dimension `dim`."""
        strides = tuple(prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return 0

    def storage_offset(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return True

    def add_(self, other: object) -> ShapeTensor:
        return self

    def contiguous(self) -> ShapeTensor:
        return self

    def view(self, *shape: int) -> ShapeTensor:
        """The same elements in another shape, of which one size may be -1."""
        known = prod(size for size in shape if size != -1)
        sizes = tuple(self.numel() // known if size == -1 else size for size in shape)
        if prod(sizes) != self.numel():
            raise RuntimeError(f"a view of {self.shape} cannot have the shape {shape}")
        return ShapeTensor(sizes, self.dtype, self._base or self)

    reshape = view


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name (`bfloat16`); TypeError for a name that is none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch has no dtype {name!r}")
    return dtype


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of elements of one byte as unsigned integers, for targets without its dtype."""
    if isinstance(tensor, ShapeTensor):
        # torch names no base of a view in another dtype.
        return cast("torch.Tensor", ShapeTensor(tensor.shape, ShapeDtype("uint8")))
    import torch

    return tensor.view(torch.uint8)


def empty_on_meta(spec: TensorSpec) -> torch.Tensor:
    """A tensor of the spec without storage: torch's where torch is loaded, else a `ShapeTensor`.

    Raises TypeError for a dtype that torch does not have.
    """
    if "torch" not in sys.modules and spec.dtype in _BYTES:
        return cast("torch.Tensor", ShapeTensor(spec.shape, ShapeDtype(spec.dtype)))
    import torch

    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")
