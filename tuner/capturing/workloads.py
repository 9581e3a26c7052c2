"""The workload of a call: its arguments as dims.

A scalar is a dim of its own name. A tensor is a text: dtype and sizes, then only what is not usual:
strides, the argument whose memory it shares with the distance in bytes, and an address that is not
a multiple of 16. `x=bfloat16[16,4096]`, `w=float32[64,64](1,64)`, `out=float32[8]=x+16`. Where
calls are made at other sizes, what follows the size says so: `x=bfloat16[n,4096]`,
`total="4096*n"`, `ends=float32[n+1]`, `scales=float32[cdiv(n,256)]`. A size
that is a dim of a tensor has a dim of its own: `x[0]=16 x=bfloat16[x[0],4096]`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from search_spaces.records import Value, Workload
from tuner.capturing.call_records import Call, Encoded, Following
from tuner.capturing.places import load_place
from tuner.runtime._call_key import describe


def workload_of(call: Call, tuned: Collection[str]) -> Workload:
    """The workload of a call, without its free arguments. tuned: those that a config sets."""
    owners: dict[int, tuple[str, int]] = {}
    return Workload.from_mapping(
        {
            name: _dim(call, name, encoded, owners)
            for name, encoded in call.arguments.items()
            if name not in tuned and name not in (call.free or ())
        }
    )


def _dim(call: Call, name: str, encoded: Encoded, owners: dict[int, tuple[str, int]]) -> Value:
    if isinstance(encoded, Following):
        text = encoded.text
        return text if "*" in text or text.startswith("cdiv(") else f"1*{text}"
    if not isinstance(encoded, Mapping):
        return describe(encoded)
    if "constexpr" in encoded:
        return _dim(call, name, encoded["constexpr"], owners)
    if "enum" in encoded:
        return describe(load_place(encoded["enum"]))
    return _text(call, name, encoded, owners)


def _text(call: Call, name: str, encoded: Any, owners: dict[int, tuple[str, int]]) -> str:
    if isinstance(encoded, Following):
        return f"{encoded}"
    if not isinstance(encoded, Mapping) or encoded.keys() & {"constexpr", "enum"}:
        return f"{_dim(call, name, encoded, owners)}"
    ((kind, given),) = encoded.items()
    if kind == "view":
        return _tensor(call, name, given, owners)
    if kind in ("tuple", "list"):
        return f"({','.join(_text(call, name, part, owners) for part in given)})"
    if kind == "descriptor":
        rest = {part: value for part, value in given.items() if part != "base"}
        sizes = "/".join(",".join(map(str, rest[part])) for part in ("shape", "strides"))
        return f"descriptor({_tensor(call, name, given['base'], owners)},{sizes})"
    return f"{given}"


def _tensor(call: Call, name: str, at: int, owners: dict[int, tuple[str, int]]) -> str:
    view = call.views[at]
    steps = tuple(math.prod(view.shape[dim + 1 :]) for dim in range(len(view.shape)))
    text = f"{view.dtype}[{','.join(map(str, view.shape))}]"
    if view.strides != steps:
        text += f"({','.join(map(str, view.strides))})"
    owner, offset = owners.setdefault(view.buffer, (name, view.offset))
    if owner != name:
        text += f"={owner}{view.offset - offset:+d}" if view.offset != offset else f"={owner}"
    address = (call.buffers[view.buffer].misalignment + view.offset) % 16
    return f"{text}@{address}" if address else text
