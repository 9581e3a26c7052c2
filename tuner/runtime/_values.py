"""Classify values for a digest: constants, containers with parts, objects with state."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

#: Modules of the standard library that add special methods to classes.
_GENERATORS = frozenset({"collections", "dataclasses", "enum", "typing"})
#: The options of a dataclass that all Python versions record; 3.12 added others.
_DATACLASS_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
#: Libraries whose versions a toolchain records, and Python itself.
TOOLS = frozenset({"torch", "triton", "numpy", "python"})

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_CONTAINERS = (tuple, list, set, frozenset, collections.deque)
#: Members that every class has, or that the digest covers elsewhere.
_NO_MEMBERS = frozenset(
    {
        "__abstractmethods__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__callable_proto_members_only__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__hash__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
        "__classcell__",
        "__protocol_attrs__",
        "__non_callable_proto_members__",
        "_member_map_",
        "_member_names_",
        "_value2member_map_",
        "_hashable_values_",
        "_unhashable_values_",
        "_unhashable_values_map_",
        "_is_protocol",
        "_is_runtime_protocol",
    }
)


def is_atom(found: Any) -> bool:
    """Whether `repr` is complete, and equal in every process."""
    return type(found) in _ATOMS


def parts(found: Any) -> Iterable[Any] | None:
    """The ordered parts of a container or of a wrapped callable; None for any other value."""
    if isinstance(found, Mapping) and isinstance(found, dict | types.MappingProxyType):
        return [part for pair in found.items() for part in pair]
    if isinstance(found, _CONTAINERS):
        return found
    if isinstance(found, functools.partial):
        return [found.func, found.args, found.keywords]
    if inspect.ismethod(found):
        return [found.__func__, found.__self__]
    if isinstance(found, types.SimpleNamespace):
        return [part for pair in sorted(vars(found).items()) for part in pair]
    if isinstance(found, property):
        return [found.fget, found.fset]
    wrapped = getattr(found, "__wrapped__", None) if _is_wrapper(found) else None
    return None if wrapped is None else [wrapped]


def text(found: Any) -> str | None:
    """A stable text for a value without parts or state; None where there is none."""
    if isinstance(found, enum.Enum):
        return f"{found.name} {found.value!r}" if is_atom(found.value) else found.name
    if isinstance(found, PurePath):
        return found.name if found.is_absolute() else found.as_posix()
    if isinstance(found, _ATOMS):  # of a subclass
        return repr(found)
    if callable(getattr(found, "tobytes", None)) and hasattr(found, "dtype"):
        return f"{found.dtype} {found.shape} {found.tobytes().hex()}"
    if callable(getattr(found, "untyped_storage", None)):
        return _tensor(found)
    if inspect.isbuiltin(found):
        return f"{found.__module__}.{found.__qualname__}"
    if getattr(found, "__dict__", None) or dataclasses.is_dataclass(found):
        return None
    if hasattr(type(found), "__slots__") and type(found).__dict__.get("__repr__") is None:
        return None
    if hasattr(found, "__next__"):  # an iterator's position changes
        return ""
    shown = repr(found)
    return None if " at 0x" in shown else shown


def _tensor(tensor: Any) -> str:
    facts = f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
    if tensor.device.type == "meta":
        return facts
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{facts} {hashlib.sha256(flat.numpy().tobytes()).hexdigest()}"


def is_opaque(cls: type) -> bool:
    """Whether an instance's state does not count, as for locks and loggers."""
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names


def state(found: Any) -> dict[str, Any]:
    """The attributes of an instance, except values of cached properties."""
    found_state = dict(getattr(found, "__dict__", {}))
    for cls in type(found).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(found, name):
                found_state[name] = getattr(found, name)
        for name, member in vars(cls).items():
            if isinstance(member, functools.cached_property):
                found_state.pop(name, None)
    return found_state


def skipped(cls: type) -> frozenset[str]:
    """Members of a class that do not affect its behaviour."""
    slots = vars(cls).get("__slots__", ())
    return _NO_MEMBERS | {"__slots__", *((slots,) if isinstance(slots, str) else slots)}


def is_generated(cls: type, name: str, member: Any) -> bool:
    """Whether Python generated a special method from parts that the digest covers.

    Python versions differ in what they add to dataclasses, named tuples, enumerations, protocols.
    """
    if not name.startswith("__"):
        return False
    function = unwrapped(member)
    function = inspect.unwrap(function) if callable(function) else function
    if getattr(function, "__globals__", {}).get("__name__") in _GENERATORS:
        return True
    code = getattr(function, "__code__", None)
    made = dataclasses.is_dataclass(cls) or issubclass(cls, tuple | enum.Enum)
    return made and code is not None and code.co_filename.startswith("<")


def fields(cls: type) -> list[Any]:
    """The fields of a dataclass with their defaults, and the options of the decorator."""
    if "__dataclass_fields__" not in vars(cls):
        return []
    options = vars(cls).get("__dataclass_params__")
    found: list[Any] = [[getattr(options, name) for name in _DATACLASS_OPTIONS]]
    for item in dataclasses.fields(cls):
        defaults = (item.default, item.default_factory)
        given = [value for value in defaults if value is not dataclasses.MISSING]
        found.append([item.name, item.init, item.compare, *given])
    return found


def unwrapped(member: Any) -> Any:
    """The function below a static method, class method or cached property."""
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    if isinstance(member, functools.cached_property):
        return member.func
    return member


def _is_wrapper(found: Any) -> bool:
    return type(found).__module__ in ("functools", "contextlib") or callable(found)
