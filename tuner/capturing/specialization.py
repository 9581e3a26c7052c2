"""What distinguishes one specialised launch from another.

Two launches have one key if a record of one describes the other: values and types of scalars;
dtypes, shapes and strides of tensors; which tensors overlap in memory and at what distances; the
alignment of each stretch of memory; descriptors; tuples; what a grid depends on. A key takes some
microseconds; `launch_matcher.py` recognises repeated launches without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

from tuner.capturing.call_records import ALIGNMENT

# -- the stretches of memory that tensors cover, and which of them overlap -------------------------
#: Addresses of the first byte and of the byte after the last one.
Span: TypeAlias = tuple[int, int]


def span_of(tensor: Any) -> Span:
    start, width = tensor.data_ptr(), tensor.element_size()
    if not tensor.numel():
        return start, start
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * width


def overlapping(spans: Sequence[Span]) -> list[list[int]]:
    """Positions of spans in groups that overlap; in the order of their first members.

    An empty span overlaps nothing.
    """
    groups: list[list[int]] = []
    end = -1
    for at in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[at]
        if start == stop:
            groups.insert(0, [at])
        elif start < end:
            groups[-1].append(at)
            end = max(end, stop)
        else:
            groups.append([at])
            end = stop
    return sorted(sorted(group) for group in groups)


# -- what distinguishes one specialised launch from another ----------------------------------------
SCALARS = frozenset({int, bool, str, float, type(None)})
#: Properties of descriptors other than their tensor and sizes; a kind may lack some.
DESCRIPTOR_OPTIONS = ("padding", "round_f32_to_tf32", "layout")
SIZES = ("shape", "strides", "block_shape")


def key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A hashable key. kwargs: the grid is among them. Raises TypeError for a value without a hash.

    The code object of a function that is the grid must stay alive as long as the key is in use.
    """
    tensors: list[Any] = []
    parts = [_part(value, tensors) for value in args]
    for name, value in kwargs.items():
        parts.append((name, _grid_part(value) if name == "grid" else _part(value, tensors)))
    key = (len(args), *parts, *_memory(tensors))
    hash(key)
    return key


def is_scalar(value: Any) -> bool:
    return type(value) in SCALARS


def _part(value: Any, tensors: list[Any]) -> Any:
    kind = type(value)
    if kind is float:
        return kind, repr(value)  # NaN equals NaN, and -0.0 differs from 0.0
    if kind in SCALARS:
        return kind, value
    if hasattr(value, "storage_offset"):
        tensors.append(value)
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, tuple | list):
        return kind, *(_part(part, tensors) for part in value)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        options = tuple(getattr(value, name, None) for name in DESCRIPTOR_OPTIONS)
        sizes = tuple(tuple(getattr(value, name)) for name in SIZES)
        return kind, *sizes, options, _part(value.base, tensors)
    if hasattr(value, "data_ptr") and hasattr(value, "base"):  # triton.reinterpret
        return kind, value.dtype, _part(value.base, tensors)
    return kind, value


def _memory(tensors: list[Any]) -> tuple[Any, ...]:
    """Per group of tensors that overlap: its alignment, its members and their distances."""
    spans = [span_of(tensor) for tensor in tensors]
    found = []
    for group in overlapping(spans):
        start = min(spans[at][0] for at in group)
        found.append((start % ALIGNMENT, *((at, spans[at][0] - start) for at in group)))
    return tuple(found)


def _grid_part(grid: Any) -> Any:
    if not callable(grid):
        return tuple(grid)
    if isinstance(grid, partial):
        named = tuple((name, held_part(value)) for name, value in grid.keywords.items())
        return partial, _grid_part(grid.func), *map(held_part, grid.args), named
    if type(grid) is not FunctionType:  # the object itself may hold tensors
        return type(grid), getattr(grid, "__qualname__", "")
    cells = (held_part(cell.cell_contents) for cell in grid.__closure__ or ())
    defaults = tuple(map(held_part, grid.__defaults__ or ()))
    named = tuple((name, held_part(value)) for name, value in (grid.__kwdefaults__ or {}).items())
    return id(grid.__code__), *cells, defaults, named


def code_of(grid: Any) -> Any:
    """The code object on whose identity the key of a grid depends; None without one."""
    while isinstance(grid, partial):
        grid = grid.func
    return getattr(grid, "__code__", None)


def held_part(value: Any) -> Any:
    """What counts of a value that a grid holds: of a tensor its shape, of an object its type."""
    if is_scalar(value):
        return _part(value, [])
    if hasattr(value, "storage_offset"):
        return type(value), tuple(value.shape)
    if isinstance(value, tuple | list):
        return type(value), *map(held_part, value)
    return type(value)
