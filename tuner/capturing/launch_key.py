"""What distinguishes one specialised launch from another, computed at every launch.

A key must cost microseconds. The types of all arguments select a plan, which knows where the
tensors are. Of a tensor it takes the dtype, shape, strides, the alignment of its address, and
whether it shares its storage with another argument. Scalars count by value; Triton distinguishes
1, 1.0 and True, whose types differ.
"""

from __future__ import annotations

from operator import itemgetter
from types import FunctionType
from typing import Any

_PLAIN = frozenset({int, float, bool, str, type(None)})


class Plan:
    """How the key of a launch is computed; equal types of arguments have one plan."""

    __slots__ = ("_grid", "_others", "_scalars", "_tensors", "known")

    def __init__(self, values: tuple[Any, ...], names: tuple[str, ...]) -> None:
        """values: all arguments, those by keyword last. names: of the latter."""
        #: Recorded launches by key.
        self.known: dict[Any, Any] = {}
        grid = names.index("grid") - len(names) if "grid" in names else None
        rest = [at for at in range(len(values)) if grid is None or at != len(values) + grid]
        self._grid = grid
        self._tensors = tuple(at for at in rest if hasattr(values[at], "storage_offset"))
        scalars = [at for at in rest if type(values[at]) in _PLAIN]
        self._scalars = itemgetter(*scalars) if scalars else _nothing
        self._others = tuple(at for at in rest if at not in (*scalars, *self._tensors))

    def key(self, values: tuple[Any, ...]) -> Any:
        """A hashable key; equal for launches that are recorded as one call."""
        parts = [self._scalars(values)]
        starts: list[int] = []
        for at in self._tensors:
            tensor = values[at]
            address = tensor.data_ptr()
            parts += (tensor.dtype, tensor.shape, tensor.stride(), address & 15)
            offset = tensor.storage_offset()
            starts.append(address - offset * tensor.element_size() if offset else address)
        for at in self._others:
            _add(values[at], parts, starts)
        if len(starts) > 1 and len(set(starts)) < len(starts):
            parts += _sharing(values, self._tensors, starts)
        if self._grid is not None:
            grid = values[self._grid]
            if type(grid) is FunctionType:
                parts.append(id(grid.__code__))
                for cell in grid.__closure__ or ():
                    value = cell.cell_contents
                    if type(value) in _PLAIN:
                        parts.append(value)
            elif callable(grid):  # the object itself may hold tensors
                parts += (type(grid), getattr(grid, "__qualname__", ""))
            else:
                parts.append(tuple(grid))
        return tuple(parts)


def _nothing(values: tuple[Any, ...]) -> None:
    return None


def _sharing(
    values: tuple[Any, ...], tensors: tuple[int, ...], starts: list[int]
) -> list[tuple[int, int]]:
    """Which tensors share a storage, and their distances in it."""
    addresses = [values[at].data_ptr() for at in tensors]
    addresses += starts[len(addresses) :]
    first = [starts.index(start) for start in starts]
    return [(one, address - addresses[one]) for one, address in zip(first, addresses, strict=True)]


def _add(value: Any, parts: list[Any], starts: list[int]) -> None:
    """A tuple, a descriptor or another object."""
    kind = type(value)
    if hasattr(value, "storage_offset"):
        address = value.data_ptr()
        parts += (value.dtype, value.shape, value.stride(), address & 15)
        starts.append(address)
    elif kind is tuple or kind is list:
        parts += (kind, len(value))
        for part in value:
            _add(part, parts, starts)
    elif hasattr(value, "block_shape"):
        parts += (tuple(value.shape), tuple(value.strides), tuple(value.block_shape))
        _add(value.base, parts, starts)
    else:
        parts += (kind, value)
