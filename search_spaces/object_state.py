"""What an object holds beside its code: attributes, captured values, defaults; as a digest.

    state = ObjectState(is_own)
    state.add(kernel)
    state.texts        what the digest is made of
    state.modules      the own modules whose classes and functions the object holds
    state.libraries    the modules of other classes and functions that it holds
    state.files        files that it names
    state.jitted       jitted functions that it holds

What code does is in the text of its modules, which the identity of a kernel has beside this state.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import itertools
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from tuner.runtime.device_code import base_function, kernel_hash

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_CONTAINERS = (tuple, list, collections.deque)
#: Modules whose objects have no value: locks, loggers, threads, handles of other objects.
_INERT = frozenset(
    {"_abc", "_thread", "_weakref", "_weakrefset", "abc", "asyncio", "concurrent", "logging"}
    | {"multiprocessing", "selectors", "socket", "threading", "warnings", "weakref"}
)
#: Members that Python gives every class.
_NO_MEMBERS = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__"})
_NAMED = 4096


class StateError(TypeError):
    """A value that has no digest; the message names the place, `hint` the remedy."""

    hint = (
        "build it inside the function that uses it, or keep what matters of it as numbers, texts, "
        "tuples or dataclasses"
    )


class ObjectState:
    """The state of objects. is_own: whether a module, given by name and file, is own code."""

    def __init__(self, is_own: Callable[[str, str], bool]) -> None:
        self.texts: list[str] = []
        self.modules: set[str] = set()
        self.libraries: set[str] = set()
        self.files: set[str] = set()
        self.jitted: list[Any] = []
        self._is_own = is_own
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []
        self._places: list[str] = []

    def add(self, found: Any, place: str = "") -> None:
        """Any value, by its type. Raises `StateError` for one without a digest."""
        with self._at(place):
            try:
                self._add(found)
            except (StateError, RecursionError):
                raise
            except Exception as error:
                raise self._make_error(found, f"{type(error).__name__}: {error}") from error

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        self._places.append(place)
        yield  # after an error the places stay, because it names them
        self._places.pop()

    def _make_error(self, found: Any, why: str) -> StateError:
        cls = type(found)
        place = ".".join(part for part in self._places if part)
        return StateError(
            f"{place or 'a value'} is a {cls.__module__}.{cls.__qualname__}, which cannot be part "
            f"of an identity ({why})"
        )

    def _add(self, found: Any) -> None:
        cls = type(found)
        if cls in _ATOMS:
            self._put(cls.__name__, repr(found))
            if isinstance(found, str) and "." in found:
                self._name_file(found)
        elif cls is not types.FunctionType and (base := base_function(found)) is not None:
            self._add_decorated(found, base)
        elif isinstance(found, types.ModuleType):
            self._note(found.__name__, found)
            self._put("module", found.__name__)
        elif self._is_repeated(found):
            pass
        elif isinstance(found, types.FunctionType):
            self._function(found)
        elif isinstance(found, type):
            self._class(found)
        else:
            self._put("(", cls.__qualname__)
            self._note(cls.__module__, cls)
            self._object(found)
            self._put(")")

    def _put(self, *texts: str) -> None:
        self.texts += texts

    def _is_repeated(self, found: object) -> bool:
        if id(found) in self._seen:
            self._put("seen", f"{self._seen[id(found)]}")
            return True
        self._seen[id(found)] = len(self._seen)
        self._kept.append(found)
        return False

    def _note(self, module: str, found: object) -> bool:
        """Whether a module is own code; it is noted as such, or as a library."""
        loaded = sys.modules.get(module)
        own = self._is_own(module, getattr(loaded, "__file__", None) or "")
        (self.modules if own else self.libraries).add(module)
        return own

    def _name_file(self, path: str | PurePath) -> None:
        """Note a file that a text or path names."""
        text = f"{path}"
        if len(text) < _NAMED and "\n" not in text and Path(text).is_file():
            self.files.add(f"{Path(text).resolve()}")

    # -- code ----------------------------------------------------------------------------------
    def _add_decorated(self, found: Any, base: types.FunctionType) -> None:
        """A jitted function: its device code, and what its decorators hold."""
        self._note(base.__module__, base)
        self.jitted.append(base)
        self._put("kernel", kernel_hash(base))
        while not isinstance(found, types.FunctionType):
            state = getattr(found, "__dict__", {})
            for name in ("values", "reset_to_zero", "restore_value"):
                given = state.get(name, state.get("options", {}).get(name))
                if given:
                    self.add(name)
                    self.add(given, name)
            found = state["fn"]

    def _function(self, fn: types.FunctionType) -> None:
        code = fn.__code__
        self._note(fn.__module__ or "", fn)
        self._put("function", fn.__qualname__)
        if not os.path.isfile(code.co_filename):
            self._add_code(code)
        for cell in fn.__closure__ or ():
            try:
                captured = cell.cell_contents
            except ValueError:  # it is not set yet
                continue
            self.add(captured, fn.__qualname__)
        self.add([fn.__defaults__, fn.__kwdefaults__], fn.__qualname__)
        for name, value in sorted(fn.__dict__.items()):
            self._put(name)
            self.add(value, name)

    def _add_code(self, code: types.CodeType) -> None:
        """Generated code, which no file has."""
        self._put("code", code.co_code.hex(), *code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:
                self.add(constant)

    def _class(self, cls: type) -> None:
        """A class: its place; of own classes that no module holds under their name all members."""
        self._put("class", cls.__qualname__)
        if not self._note(cls.__module__, cls):
            return
        for base in cls.__bases__:
            self.add(base)
        if _is_placed(cls):
            return
        for name, member in sorted(vars(cls).items()):
            if name not in _NO_MEMBERS and not inspect.isdatadescriptor(member):
                self._put(name)
                self.add(_unwrap(member), f"{cls.__qualname__}.{name}")

    # -- values --------------------------------------------------------------------------------
    def _object(self, found: Any) -> None:
        if isinstance(found, enum.Enum):
            self._put(found.name)
        elif (array := _array(found)) is not None:
            self._put(array)
        elif isinstance(found, PurePath):
            self._put(found.name if found.is_absolute() else found.as_posix())
            self._name_file(found)
        elif type(found).__module__.partition(".")[0] in _INERT or _is_stream(found):
            return
        elif (parts := _parts(found)) is not None:
            for part in parts:
                self.add(part)
        elif isinstance(found, set | frozenset):
            self._put(*sorted(self._separate(part) for part in found))
        else:
            self._instance(found)
            return
        own = {name: part for name, part in _attributes(found).items() if name != "_value_"}
        if not isinstance(found, enum.Enum | functools.partial) and own and _array(found) is None:
            self._members(own)

    def _instance(self, found: Any) -> None:
        """An object by its class and its attributes; one of a class in C by what pickle keeps.

        A class may say what counts of an instance: `identity_state()` returns it.
        """
        self.add(type(found))
        given = getattr(type(found), "identity_state", None)
        kept = given(found) if given is not None else found
        if type(kept) is not type(found):
            self.add(kept)
            return
        attributes = _attributes(kept)
        self._members(attributes)
        if any(_is_compiled(base) for base in type(found).__mro__):
            text = "" if attributes else _show(found)
            self.add(text or [*_reduce(found)])

    def _members(self, members: dict[str, Any]) -> None:
        for name, value in sorted(members.items()):
            self._put(name)
            self.add(value, name)

    def _separate(self, part: Any) -> str:
        """The digest of one value alone. It gives the members of a set an order."""
        other = ObjectState(self._is_own)
        other._places = [*self._places]
        other.add(part)
        self.modules |= other.modules
        self.libraries |= other.libraries
        return hashlib.sha256("\0".join(other.texts).encode("utf-8", "surrogatepass")).hexdigest()


def _parts(found: Any) -> Iterable[Any] | None:
    """The ordered parts of a container or of a wrapped callable; None for any other value."""
    if isinstance(found, dict | types.MappingProxyType):
        factory = getattr(found, "default_factory", None)
        return [part for pair in found.items() for part in pair] + [factory]
    if isinstance(found, _CONTAINERS):
        return [*found, getattr(found, "maxlen", None)]
    if isinstance(found, functools.partial):
        return [found.func, found.args, found.keywords]
    if inspect.ismethod(found):
        return [found.__func__, found.__self__]
    if isinstance(found, types.BuiltinMethodType | types.MethodWrapperType):
        owner = found.__self__
        return [found.__name__, *([] if isinstance(owner, types.ModuleType | type) else [owner])]
    if isinstance(found, types.CodeType):
        return [found.co_code, found.co_names, found.co_consts]
    if isinstance(found, io.StringIO | io.BytesIO):
        return [found.getvalue()]
    if isinstance(found, re.Pattern):
        return [found.pattern, found.flags]
    if isinstance(found, int | float | complex | str | bytes):  # of a subclass
        base = next(atom for atom in _ATOMS if isinstance(found, atom))
        return [vars(base)["__repr__"](found)]
    if isinstance(found, itertools.count):  # a counter's position changes
        return []
    wrapped = inspect.getattr_static(found, "__wrapped__", None)
    return None if wrapped is None or not callable(found) else [found.__wrapped__]


def _attributes(found: Any) -> dict[str, Any]:
    """The attributes of an instance, except values of cached properties."""
    held = dict(getattr(found, "__dict__", {}))
    for cls in type(found).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{cls.__name__.lstrip('_')}{slot}" if private else slot
            if slot not in ("__dict__", "__weakref__") and hasattr(found, name):
                held[name] = getattr(found, name)
        for name, member in vars(cls).items():
            if isinstance(member, functools.cached_property) and name in held:
                del held[name]
    return held


def _array(found: Any) -> str | None:
    """Dtype, shape and a digest of the data of an array or tensor; None for any other value."""
    if isinstance(found, type) or not hasattr(type(found), "shape"):
        return None
    if hasattr(type(found), "untyped_storage"):
        return _tensor(found)
    if not hasattr(type(found), "tobytes"):
        return None
    if found.dtype.hasobject:
        raise TypeError("an array of objects has no stable bytes")
    return f"{found.dtype} {found.shape} {hashlib.sha256(found.tobytes()).hexdigest()}"


def _tensor(tensor: Any) -> str:
    facts = f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
    if tensor.device.type == "meta":
        return facts
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    return f"{facts} {hashlib.sha256(flat.numpy().tobytes()).hexdigest()}"


def _is_placed(cls: type) -> bool:
    """Whether its module holds a class under its name, so that the module's text is all of it."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def _is_stream(found: Any) -> bool:
    """Whether a value is a standard stream; another open file has no digest."""
    if not isinstance(found, io.IOBase) or isinstance(found, io.StringIO | io.BytesIO):
        return False
    if not f"{getattr(found, 'name', '<')}".startswith("<"):
        raise TypeError("what it reads may change")
    return True


def _is_compiled(cls: type) -> bool:
    """Whether a class is written in C, so that its instances may hold what no attribute shows."""
    members = vars(cls)
    is_python = any(isinstance(_unwrap(item), types.FunctionType) for item in members.values())
    return cls is not object and not is_python and not {"__dict__", "__slots__"} & members.keys()


def _show(found: Any) -> str:
    """The text of a value in C where it is complete; empty otherwise."""
    if dataclasses.is_dataclass(found) or type(found).__module__ == "operator":
        return ""  # the text of an operator has the texts of what it holds
    text = repr(found)
    return "" if " at 0x" in text else text


def _reduce(found: Any) -> Iterable[Any]:
    """What `pickle` would keep of an object that is written in C. Raises where it keeps nothing."""
    kept = found.__reduce_ex__(2)
    if isinstance(kept, str):
        return [kept]
    make, arguments, *rest = kept
    changing = [None if part is None else list(part) for part in rest[1:3]]
    return [make, arguments, *rest[:1], *changing]


def _unwrap(member: Any) -> Any:
    """The function below a static method, class method, property or cached property."""
    for name in ("__func__", "fget", "func"):
        inner = inspect.getattr_static(member, name, None)
        if inner is not None and isinstance(getattr(member, name), types.FunctionType):
            return getattr(member, name)
    return member
