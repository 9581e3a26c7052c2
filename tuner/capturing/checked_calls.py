"""What a record in a file must be. A file of calls is data: its texts name things, nothing more.

Names are identifiers, places are `module:object` or the file of a script, options are numbers and
flags, and sizes have limits. The types of other parts follow from their use: a wrong one raises
where the record is made.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.capturing.arguments import PLACED, leaves
from tuner.capturing.call_records import Buffer, Call, Encoded, View

#: More than any GPU has.
_MOST_BYTES = 1 << 40
#: The most calls of a file, and arguments of one.
_MOST_CALLS, _MOST_ARGUMENTS = 1 << 16, 1 << 12
_LONGEST = 4096
_DEPTH = 16
_DTYPE = re.compile(r"[a-z][a-z0-9_]{1,30}")
#: Options that are text. Others could name files, flags of compilers, or code.
_TEXT_OPTIONS = frozenset({"default_dot_input_precision"})
_NEVER = frozenset({"ir_override", "extern_libs", "ptx_options", "backend_name", "arch"})
_SCALARS = (bool, int, float, str, type(None))
_KINDS = frozenset({"float", "view", "tuple", "list", "descriptor", "dtype", "constexpr", *PLACED})


def check_calls(calls: tuple[Call, ...]) -> None:
    """Raise ValueError for calls that a recorder would not have made."""
    _require(len(calls) <= _MOST_CALLS, f"it has {len(calls)} calls")
    for call in calls:
        _check_call(call)


def _check_call(call: Call) -> None:
    _require(isinstance(call.problem, str), "a problem is no text")
    _require(_is_line(call.kernel), "the name of a kernel is no line of text")
    if not call.problem:
        _require(call.kernel.isidentifier(), f"{call.kernel!r:.80} is no name of a kernel")
        check_place(call.place)
    _require(not call.place or _is_line(call.place), "a place is no line of text")
    _require(set(call.decorators) <= {"autotune", "heuristics"}, "it names unknown decorators")
    _require(len(call.arguments) <= _MOST_ARGUMENTS, "a call has too many arguments")
    for name, encoded in call.arguments.items():
        _check_name(name)
        _check_argument(encoded, len(call.views))
    _require(set(call.keywords) <= call.arguments.keys(), "a keyword is no argument")
    _require({*(call.free or ())} <= call.arguments.keys(), "it frees what is no argument")
    _require(set(call.zeroed) <= call.arguments.keys(), "it zeroes what is no argument")
    for name in call.grid.reads:
        _check_name(name)
    for config in (call.options, call.default or {}):
        for name, value in config.items():
            _check_name(name)
            _require(isinstance(value, _SCALARS), f"the config value {name} is no scalar")
            _require(name not in _NEVER, f"it sets the option {name}")
    for name, value in call.options.items():
        plain = not isinstance(value, str) or name in _TEXT_OPTIONS
        _require(plain, f"the option {name} is text")
    for buffer in call.buffers:
        _check_buffer(buffer)
    for view in call.views:
        _check_view(view, call.buffers)
    for written in call.written or ():
        _require(_is_position(written.buffer, len(call.buffers)), "it writes an unknown buffer")


def check_place(place: Any) -> None:
    """Raise ValueError for a place that is neither `module:object` nor `/path/file.py:object`."""
    where, _, attribute = place.rpartition(":") if _is_line(place) else ("", "", "")
    module = where if not where.endswith(".py") else "file"
    _require(_is_dotted(module) and _is_dotted(attribute), f"{place!r:.80} is no place of a kernel")


def foreign_file(call: Call) -> str:
    """Why the file of a call's script is not imported; empty where it may be, or there is none.

    It may be in the working folder, below it, or in a folder of the import path, whose modules any
    place can name.
    """
    given = (leaf for encoded in call.arguments.values() for leaf in leaves(encoded))
    for place in (call.place, *(found for kind, found in given if kind in PLACED)):
        where = place.rpartition(":")[0]
        if not where.endswith(".py"):
            continue
        file = Path(where).resolve()
        folders = {Path(folder or os.curdir).resolve() for folder in sys.path}
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        own = main is not None and Path(main).resolve() == file
        if not (own or file.parent in folders or Path.cwd() in file.parents):
            return f"{file} is neither in the working folder nor on the import path"
    return ""


def _check_argument(encoded: Encoded, views: int, depth: int = _DEPTH) -> None:
    if isinstance(encoded, _SCALARS):
        return
    _require(depth > 0 and isinstance(encoded, Mapping) and len(encoded) == 1, "a bad argument")
    ((kind, given),) = encoded.items()
    _require(kind in _KINDS, f"an argument is a {kind!r:.40}")
    if kind == "float":
        _require(given in ("inf", "-inf", "nan"), "a float is no number")
    elif kind == "view":
        _require(_is_position(given, views), "an argument is an unknown tensor")
    elif kind in ("tuple", "list"):
        _require(isinstance(given, list) and len(given) <= _MOST_ARGUMENTS, "a tuple is too long")
        for part in given:
            _check_argument(part, views, depth - 1)
    elif kind == "descriptor":
        _require(_is_position(given["base"], views), "a descriptor has an unknown tensor")
        known = {"base", "shape", "strides", "block_shape", "padding", "round_f32_to_tf32"}
        _require(given.keys() <= known, "a descriptor has unknown parts")
        for name in ("shape", "strides", "block_shape"):
            _require(all(map(_is_size, given[name])), f"a descriptor's {name} is no size")
    elif kind in PLACED:
        check_place(given)
    elif kind == "constexpr":
        _check_argument(given, views, depth - 1)
    else:
        _require(isinstance(given, str) and bool(_DTYPE.fullmatch(given)), "an unknown dtype")


def _check_buffer(buffer: Buffer) -> None:
    _check_name(buffer.name)
    fits = _is_size(buffer.bytes) and buffer.bytes <= _MOST_BYTES
    _require(fits and _is_position(buffer.misalignment, 16), f"the size of {buffer.name} is wrong")
    named = buffer.contents == "" or re.fullmatch(r"[0-9a-f]{64}", buffer.contents)
    _require(bool(named), f"the contents of {buffer.name} have no name")
    if (values := buffer.values) is not None:
        numbers = (values.mean, values.std, values.low, values.high)
        finite = all(type(each) in (int, float) and math.isfinite(each) for each in numbers)
        _require(finite and values.low <= values.high, f"the values of {buffer.name} are wrong")


def _check_view(view: View, buffers: tuple[Buffer, ...]) -> None:
    _require(_is_position(view.buffer, len(buffers)), "a tensor is in an unknown buffer")
    _require(isinstance(view.dtype, str) and bool(_DTYPE.fullmatch(view.dtype)), "an unknown dtype")
    _require(all(map(_is_size, (*view.shape, *view.strides, view.offset))), "a size is wrong")
    _require(len(view.shape) == len(view.strides) <= 64, "a tensor's sizes and strides differ")
    if math.prod(view.shape):
        last = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        whole = buffers[view.buffer].bytes
        _require(view.offset + last < whole, "a tensor reaches beyond its buffer")


def _check_name(name: Any) -> None:
    _require(isinstance(name, str) and name.isidentifier(), f"{name!r:.80} is no name")


def _is_line(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _LONGEST and text.isprintable()


def _is_dotted(text: str) -> bool:
    return bool(text) and all(part.isidentifier() for part in text.split("."))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_BYTES


def _is_position(value: Any, count: int) -> bool:
    return type(value) is int and 0 <= value < count


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)
