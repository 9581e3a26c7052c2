"""Classify values for a digest: constants, containers with parts, objects with state."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import itertools
import re
import types
import weakref
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

#: Modules of the standard library that add special methods to classes.
_GENERATORS = frozenset({"collections", "dataclasses", "enum", "typing"})
#: The options of a dataclass that all Python versions record; 3.12 added others.
_DATACLASS_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
#: Libraries whose versions a toolchain records, and Python itself.
TOOLS = frozenset({"torch", "triton", "numpy", "python"})
#: Names of a module that do not affect behaviour, most of them set by the interpreter.
MODULE_NAMES = frozenset(
    {
        "__all__",
        "__annotate__",
        "__annotations__",
        "__builtins__",
        "__cached__",
        "__conditional_annotations__",
        "__debug__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
        "__warningregistry__",
    }
)
#: Modules whose objects have no value: locks, loggers, streams, threads, weak caches.
_OPAQUE = frozenset(
    {
        "_abc",
        "_asyncio",
        "_contextvars",
        "_queue",
        "_socket",
        "_thread",
        "_weakref",
        "_weakrefset",
        "abc",
        "asyncio",
        "concurrent",
        "logging",
        "multiprocessing",
        "selectors",
        "socket",
        "subprocess",
        "threading",
        "typing",
        "warnings",
        "weakref",
    }
)

#: The import name of a file that names a kernel as `file.py:object`, which depends on its folder.
_FILE_MODULE = re.compile(r"\btuner_kernels_(\w+)_[0-9a-f]{8}\b")

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
    if isinstance(found, dict | types.MappingProxyType):
        pairs = [part for pair in found.items() for part in pair]
        return [*pairs, *_settings(found)]
    if isinstance(found, collections.deque):
        return [*found, *_settings(found)]
    if isinstance(found, _CONTAINERS):
        return found
    if isinstance(found, types.BuiltinMethodType | types.MethodWrapperType):
        owner = found.__self__
        silent = owner is None or isinstance(owner, types.ModuleType | type)
        return None if silent else [found.__name__, owner]
    if isinstance(found, weakref.ReferenceType):
        return [found()]
    if isinstance(found, types.CodeType):
        return [found.co_code, found.co_names, found.co_consts]
    if isinstance(found, io.StringIO | io.BytesIO):
        return [found.getvalue()]
    if isinstance(found, functools.partial):
        return [found.func, found.args, found.keywords]
    if inspect.ismethod(found):
        return [found.__func__, found.__self__]
    if isinstance(found, types.SimpleNamespace):
        return [part for pair in sorted(vars(found).items()) for part in pair]
    if isinstance(found, property):
        return [found.fget, found.fset]
    inner = find_wrapped(found)
    return None if inner is None else [inner]


def _settings(found: Any) -> list[Any]:
    """What a container does beside holding its parts."""
    if isinstance(found, collections.defaultdict):
        return ["default_factory", found.default_factory]
    limit = getattr(found, "maxlen", None) if isinstance(found, collections.deque) else None
    return [] if limit is None else ["maxlen", limit]


def find_wrapped(found: Any) -> Any:
    """The function below a wrapper that is an object, as that of `functools.lru_cache`; or None."""
    if type(found).__module__ in ("functools", "contextlib") or callable(found):
        return _attribute(found, "__wrapped__")
    return None


def text(found: Any, *, own: bool = False) -> str | None:
    """A stable text for a value without parts or state; None where there is none.

    own: whether its type is own code, whose `repr` may hide what matters.
    """
    if isinstance(found, enum.Enum):
        return f"{found.name} {found.value!r}" if is_atom(found.value) else found.name
    if isinstance(found, PurePath):
        return found.name if found.is_absolute() else found.as_posix()
    for atom in _ATOMS:  # of a subclass
        if isinstance(found, atom):
            return f"{vars(atom)['__repr__'](found) if own else repr(found)}"
    array = _array(found)
    return array if array is not None or own else _show(found)


def _array(found: Any) -> str | None:
    """Dtype, shape and data of an array or tensor; None for any other value."""
    if callable(_attribute(found, "tobytes")) and hasattr(found, "dtype"):
        if found.dtype.hasobject:
            raise TypeError("an array of objects has no stable bytes")
        return f"{found.dtype} {found.shape} {found.tobytes().hex()}"
    return _tensor(found) if callable(_attribute(found, "untyped_storage")) else None


def _show(found: Any) -> str | None:
    """The text of a library's value where it is complete; None otherwise."""
    if isinstance(found, re.Pattern):
        return f"re.compile({found.pattern!r}, {found.flags})"
    if isinstance(found, itertools.count):  # a counter's position changes
        return ""
    if inspect.isbuiltin(found):
        return f"{found.__module__}.{found.__qualname__}"
    if getattr(found, "__dict__", None) or dataclasses.is_dataclass(found):
        return None
    if hasattr(type(found), "__slots__") and type(found).__dict__.get("__repr__") is None:
        return None
    if type(found).__module__ == "operator":  # its text has the texts of what it holds
        return None
    text = repr(found)
    return None if " at 0x" in text else text


def _attribute(found: Any, name: str) -> Any:
    """An attribute; None for one that only `__getattr__` could answer for."""
    return getattr(found, name) if inspect.getattr_static(found, name, None) is not None else None


def _tensor(tensor: Any) -> str:
    facts = f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
    if tensor.device.type == "meta":
        return facts
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    return f"{facts} {hashlib.sha256(flat.numpy().tobytes()).hexdigest()}"


def place_text(found: Any) -> str:
    """An object in a config as tables hold it: a container by its parts, a function by its place.

    The text of an object without a name has its address (` at 0x`).
    """
    if type(found) in (tuple, list):
        texts = [repr(part) if isinstance(part, str) else place_text(part) for part in found]
        if type(found) is list:
            return f"[{', '.join(texts)}]"
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    text = f"{found}"
    base = found if isinstance(found, types.FunctionType | type) else getattr(found, "fn", None)
    if " at 0x" in text and base is not None:
        place = f"{base.__module__}:{base.__qualname__}"
        text = place if base is found else f"{type(found).__name__}({place})"
    return _FILE_MODULE.sub(r"\1", text)


def is_opaque(found: Any) -> bool:
    """Whether an object's state does not count, as for locks and loggers."""
    if isinstance(found, io.IOBase):
        if not f"{getattr(found, 'name', '<')}".startswith("<"):
            raise TypeError("what it reads may change")
        return True
    return type(found).__module__.partition(".")[0] in _OPAQUE


def is_compiled(cls: type) -> bool:
    """Whether a class is written in C, so that its instances may hold what no attribute shows."""
    members = vars(cls)
    is_python = any(isinstance(unwrap(member), types.FunctionType) for member in members.values())
    return cls is not object and not is_python and not {"__dict__", "__slots__"} & members.keys()


def reduce_object(found: Any) -> Iterable[Any]:
    """What `pickle` would keep of an object that is written in C. Raises where it keeps nothing."""
    kept = found.__reduce_ex__(2)
    if isinstance(kept, str):
        return [kept]
    make, arguments, *rest = kept
    changing = [None if part is None else list(part) for part in rest[1:3]]
    return [make, arguments, *rest[:1], *changing]


def is_position(found: Any) -> bool:
    """Whether a text is a place in a file (`ops.py:12`), which libraries keep for messages."""
    return isinstance(found, str) and re.search(r"\.py:\d+$", found) is not None


def is_descriptor(found: Any) -> bool:
    """Whether a class member computes what an instance shows for it."""
    kept = functools.partial, types.MethodType, type
    return hasattr(type(found), "__get__") and not isinstance(found, kept)


def is_computed(member: Any) -> bool:
    """Whether a class member takes precedence over what an instance stores under its name."""
    return isinstance(member, property | functools.cached_property)


def spellings(cls: type, name: str) -> tuple[str, ...]:
    """A name as written, and as Python mangles it inside a class and its bases."""
    if not name.startswith("__") or name.endswith("__"):
        return (name,)
    return (name, *(f"_{base.__name__.lstrip('_')}{name}" for base in cls.__mro__))


def state(found: Any) -> dict[str, Any]:
    """The attributes of an instance, except values of cached properties."""
    found_state = dict(getattr(found, "__dict__", {}))
    if isinstance(found, enum.Enum):
        for name in ("_name_", "__objclass__", "_sort_order_"):
            found_state.pop(name, None)
        if is_atom(found.value):
            found_state.pop("_value_", None)
    for cls in type(found).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            name = spellings(cls, slot)[:2][-1]
            if slot not in ("__dict__", "__weakref__") and hasattr(found, name):
                found_state[name] = getattr(found, name)
        for name, member in vars(cls).items():
            if isinstance(member, functools.cached_property):
                found_state.pop(name, None)
    return found_state


def list_skipped(cls: type) -> frozenset[str]:
    """Members of a class that do not affect its behaviour."""
    slots = vars(cls).get("__slots__", ())
    return _NO_MEMBERS | {"__slots__", *((slots,) if isinstance(slots, str) else slots)}


def is_generated(cls: type, name: str, member: Any) -> bool:
    """Whether Python generated a special method from parts that the digest covers.

    Python versions differ in what they add to dataclasses, named tuples, enumerations, protocols.
    """
    if not name.startswith("__"):
        return False
    function = unwrap(member)
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


def unwrap(member: Any) -> Any:
    """The function below a static method, class method or cached property."""
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    if isinstance(member, functools.cached_property):
        return member.func
    return member
