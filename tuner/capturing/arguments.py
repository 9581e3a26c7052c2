"""Arguments of a launch as records, and records as arguments.

None, true, 3, "text"                     themselves
{"float": "inf"}                          a float that JSON lacks
{"view": 0}                               a tensor, by its position in the call's views
{"tuple": [...]}, {"list": [...]}         their parts
{"descriptor": {...}}                     a TensorDescriptor made by the host
{"dtype": "float16"}                      a dtype of triton.language
{"function": "module:object"}             a function under @triton.jit
{"enum": "module:Class.MEMBER"}           a member of an enumeration
{"constexpr": ...}                        a tl.constexpr
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.errors import KernelError
from tuner.capturing.call_records import Encoded, Following
from tuner.capturing.places import NoPlace, load_place, place_of
from tuner.capturing.specialization import SIZES


class Uncapturable(Exception):
    """An argument that cannot be recorded; the text says why in one line."""


def encode(name: str, value: Any, view_of: Callable[[str, Any], int]) -> Encoded:
    """An argument as a record. view_of: adds a tensor to the views and returns its position."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": f"{value}"} if is_infinite(value) else value
    if is_tensor(value):
        return {"view": view_of(name, value)}
    if type(value) in (tuple, list):
        parts = [encode(f"{name}_{at}", part, view_of) for at, part in enumerate(value)]
        return {type(value).__name__: parts}
    if is_descriptor(value):
        return {"descriptor": _descriptor(name, value, view_of)}
    kind = type(value).__module__.partition(".")[0], type(value).__name__
    if kind == ("triton", "constexpr"):
        return {"constexpr": encode(name, value.value, view_of)}
    if kind == ("triton", "dtype"):
        return {"dtype": value.name}
    named = isinstance(value, enum.Enum) and value.name in type(value).__members__
    if named or _is_jitted(value):
        try:
            if named:
                return {"enum": f"{place_of(type(value))}.{value.name}"}
            return {"function": place_of(value)}
        except NoPlace as problem:
            what = type(value).__name__
            raise Uncapturable(f"its argument {name} is a {what}, and {problem}") from None
    if isinstance(value, int | float | str):  # a torch.Size member, numpy's, a flag
        base = next(each for each in (int, float, str) if isinstance(value, each))
        return value.item() if hasattr(value, "item") else base(value)
    raise Uncapturable(f"its argument {name} is a {type(value).__name__}, which has no record")


def decode(encoded: Encoded, tensors: Sequence[Any], placed: Mapping[str, Any]) -> Any:
    """The argument of a record. tensors: one per view. placed: the objects of `placed_in`."""
    if not isinstance(encoded, Mapping):
        return int(encoded) if isinstance(encoded, Following) else encoded
    ((kind, given),) = encoded.items()
    if kind == "float":
        return float(given)
    if kind == "view":
        return tensors[given]
    if kind in ("tuple", "list"):
        parts = [decode(part, tensors, placed) for part in given]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "descriptor":
        from triton.tools.tensor_descriptor import TensorDescriptor

        more = {name: value for name, value in given.items() if name != "base"}
        sizes = {name: [*map(int, more.pop(name))] for name in SIZES}
        return TensorDescriptor(tensors[given["base"]], **sizes, **more)
    if kind in PLACED:
        return placed[given]
    import triton.language as tl

    if kind == "dtype":
        return tl.dtype(given)
    return tl.constexpr(decode(given, tensors, placed))


def leaves(encoded: Encoded) -> Iterator[tuple[str, Any]]:
    """The parts of an argument that are no plain values, as kind and record."""
    if isinstance(encoded, Mapping):
        ((kind, given),) = encoded.items()
        if kind in ("tuple", "list", "constexpr"):
            for part in [given] if kind == "constexpr" else given:
                yield from leaves(part)
        else:
            yield kind, given


def placed_in(arguments: Iterable[Encoded]) -> dict[str, Any]:
    """The functions and members of enumerations among arguments, by place. Raises `KernelError`
    for one that is gone."""
    found: dict[str, Any] = {}
    for kind, place in (leaf for encoded in arguments for leaf in leaves(encoded)):
        if kind in PLACED:
            found[place], (is_kind, what) = load_place(place), PLACED[kind]
            if not is_kind(found[place]):
                raise KernelError(f"captured call: {place} is no {what}", "capture it again")
    return found


def views_in(encoded: Encoded) -> list[int]:
    """Positions of the views that an argument consists of."""
    kinds = ("view", "descriptor")
    return [v if kind == "view" else v["base"] for kind, v in leaves(encoded) if kind in kinds]


def has_descriptor(encoded: Encoded) -> bool:
    """Whether an argument is a descriptor made by the host, or has one among its parts."""
    return any(kind == "descriptor" for kind, _ in leaves(encoded))


def is_infinite(value: Any) -> bool:
    """Whether a value is a float that JSON lacks: inf, -inf or nan."""
    return isinstance(value, float) and not math.isfinite(value)


def is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "untyped_storage")


def is_descriptor(value: Any) -> bool:
    return type(value).__name__ == "TensorDescriptor" and hasattr(value, "block_shape")


def _is_jitted(value: Any) -> bool:
    return hasattr(value, "fn") and (hasattr(value, "arg_names") or hasattr(value, "signature"))


def _descriptor(name: str, value: Any, view_of: Callable[[str, Any], int]) -> Encoded:
    sizes = {key: [int(size) for size in getattr(value, key)] for key in SIZES}
    more = {key: getattr(value, key) for key in _MORE if hasattr(value, key)}
    return {"base": view_of(name, value.base), **sizes, **more}


_MORE = ("padding", "round_f32_to_tf32")
#: What an argument that is recorded by its place must be, and how errors name that.
PLACED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "function": (_is_jitted, "function under @triton.jit"),
    "enum": (lambda value: isinstance(value, enum.Enum), "member of an enumeration"),
}
