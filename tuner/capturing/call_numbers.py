"""The numbers of a call: sizes, strides and offsets of its tensors, and its integer arguments.

Every number has a place, such as `n_rows`, `dim 0 of x`, `stride 1 of x` or `block_shape 0 of d`.
A size that a range may name is an integer argument or a dim of a tensor, `x[0]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.shape_tensor import torch_dtype
from tuner.capturing.arguments import views_in
from tuner.capturing.call_records import Buffer, Call, View
from tuner.capturing.grids import constexprs
from tuner.capturing.inputs import is_dense
from tuner.capturing.specialization import SIZES

#: Receives the place of a number in a call and the number; returns that of another call.
_Change: TypeAlias = Callable[[str, int], int]
#: The name of a size that is a dim of a tensor.
_DIM = re.compile(r"(\w+)\[(\d+)\]")


def list_sizes(call: Call, parts: AutotuneParts) -> list[str]:
    """The sizes of a call that a range may name: integer arguments, then dims of tensors."""
    fixed = {*constexprs(parts), *(call.free or ()), *(n for c in parts.configs for n in c)}
    dims = [
        f"{name}[{at}]"
        for name, encoded in call.arguments.items()
        if isinstance(encoded, Mapping) and "view" in encoded
        for at in range(len(call.views[encoded["view"]].shape))
    ]
    integers = (name for name, value in call.arguments.items() if type(value) is int)
    return [*(name for name in integers if name not in fixed), *dims]


def place_of_size(name: str) -> str:
    """The place of the number that is a size."""
    found = _DIM.fullmatch(name)
    return f"dim {found[2]} of {found[1]}" if found else name


def size_of(call: Call, name: str) -> int:
    """The value of a size in a call."""
    return list_numbers(call)[place_of_size(name)]


def list_numbers(call: Call) -> dict[str, int]:
    """All numbers of a call by their places."""
    found: dict[str, int] = {}

    def note(place: str, value: int) -> int:
        found[place] = value
        return value

    change_numbers(call, note)
    return found


def list_owners(call: Call) -> list[str]:
    """The name of each view: its argument, and in a tuple the part of it."""
    found = [""] * len(call.views)
    for name, encoded in call.arguments.items():
        inside = views_in(encoded)
        for at, view in enumerate(inside):
            found[view] = name if len(inside) == 1 else f"{name}[{at}]"
    return found


def change_numbers(call: Call, change: _Change) -> Call:
    """The call with other numbers; strides of contiguous tensors, and buffers, follow from them."""
    owners = list_owners(call)
    views = tuple(_change_view(owners[at], view, change) for at, view in enumerate(call.views))
    arguments = {
        name: encoded if name in (call.free or ()) else _change_encoded(name, encoded, change)
        for name, encoded in call.arguments.items()
    }
    buffers = tuple(
        _resize(buffer, [view for view in views if view.buffer == at])
        for at, buffer in enumerate(call.buffers)
    )
    return replace(call, arguments=arguments, views=views, buffers=buffers)


def _change_view(name: str, view: View, change: _Change) -> View:
    shape = tuple(change(f"dim {at} of {name}", size) for at, size in enumerate(view.shape))
    if is_dense(view):
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    else:
        strides = tuple(
            change(f"stride {at} of {name}", step) for at, step in enumerate(view.strides)
        )
    offset = change(f"the offset of {name}", view.offset)
    return replace(view, shape=shape, strides=strides, offset=offset)


def _change_encoded(name: str, encoded: Any, change: _Change) -> Any:
    if type(encoded) is int:
        return change(name, encoded)
    if not isinstance(encoded, Mapping):
        return encoded
    ((kind, given),) = encoded.items()
    if kind in ("tuple", "list"):
        return {
            kind: [_change_encoded(f"{name}[{i}]", part, change) for i, part in enumerate(given)]
        }
    if kind == "constexpr":
        return {kind: _change_encoded(name, given, change)}
    if kind == "descriptor":
        sizes = {
            part: [change(f"{part} {i} of {name}", size) for i, size in enumerate(given[part])]
            for part in SIZES
        }
        return {kind: {**given, **sizes}}
    return encoded


def _resize(buffer: Buffer, views: Sequence[View]) -> Buffer:
    """The buffer that holds these views."""
    size = max(map(_find_end, views)) - min(view.offset for view in views)
    return buffer if size == buffer.bytes else replace(buffer, bytes=size)


def _find_end(view: View) -> int:
    if not math.prod(view.shape):
        return view.offset
    last = sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True))
    return view.offset + (last + 1) * torch_dtype(view.dtype).itemsize
