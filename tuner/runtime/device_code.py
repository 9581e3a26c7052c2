"""The identity of device code: a digest of a jitted function and of all that it reaches.

Tables hold it, and a process that loads them computes it again. It covers the function, the jitted
functions that it calls, wherever they are defined, and the constants that they read. Comments,
docstrings, line numbers and names of files and modules do not affect it. It is equal in every
process and Python version.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import platform
import re
import sys
import textwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ._syntax import Chain, chain_of, normal_form, source_of, stamp

__all__ = [
    "accepted_hashes",
    "base_function",
    "chain_of",
    "kernel_hash",
    "normal_form",
    "place_text",
    "settle_cache_keys",
    "stamp",
]

_LENGTH = 16
#: Libraries whose values a device function names; a toolchain records their versions.
_LIBRARIES = frozenset({"triton", "torch", "numpy"}) | sys.stdlib_module_names
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
#: The import name of a file that names a kernel as `file.py:object`, which depends on its folder.
_FILE_MODULE = re.compile(r"\btuner_kernels_(\w+)_[0-9a-f]{8}\b")
_MISSING = object()
_SETTLED = "_hashes_callees_first"


def kernel_hash(fn: Any) -> str:
    """The digest of a kernel's device code: the function, its callees and captured constants.

    fn: a function under `@triton.jit` and any further decorators. Raises TypeError otherwise.
    """
    base = base_function(fn)
    if base is None:
        raise TypeError(f"{fn!r} is not a function under @triton.jit")
    walk = _Walk()
    walk.function(base)
    return walk.digest()


def accepted_hashes(fn: Any) -> frozenset[str]:
    """The digest under which a table of this kernel is valid; one that no table has on an error."""
    try:
        return frozenset({kernel_hash(fn)})
    except Exception:  # user code runs here; its errors must not stop a launch
        return frozenset({""})


def base_function(found: Any) -> Any:
    """The function below a kernel's decorators, Triton's or ours; None for any other value."""
    while not isinstance(found, FunctionType):
        state = getattr(found, "__dict__", None)
        if not isinstance(state, dict) or not {"arg_names", "signature"} & state.keys():
            return None
        found = state.get("fn")
    return found


def source_text(fn: Any) -> str:
    """A kernel's text from `def` on. It is equal for compiled and for interpreted kernels."""
    text = getattr(fn, "src", None)
    if isinstance(text, str):
        return text
    text = textwrap.dedent(inspect.getsource(base_function(fn) or fn))
    start = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
    return text[start.start() :] if start else text


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
    base = found if isinstance(found, FunctionType | type) else getattr(found, "fn", None)
    if " at 0x" in text and base is not None:
        place = f"{base.__module__}:{base.__qualname__}"
        text = place if base is found else f"{type(found).__name__}({place})"
    return _FILE_MODULE.sub(r"\1", text)


class _Walk:
    """One walk over device code. Everything that it reaches enters one digest, in order."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._seen: dict[int, int] = {}

    def digest(self) -> str:
        return self._sha.hexdigest()[:_LENGTH]

    def _put(self, *texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._sha.update(b"%d:" % len(data) + data)

    def _is_repeated(self, found: object) -> bool:
        if id(found) in self._seen:
            self._put("seen", f"{self._seen[id(found)]}")
            return True
        self._seen[id(found)] = len(self._seen)
        return False

    def function(self, fn: FunctionType) -> None:
        """A function that runs on the device, or while it is compiled."""
        if _library_of(fn) is not None:
            self._put(f"{_library_of(fn)}", fn.__qualname__)
            return
        if self._is_repeated(fn):
            return
        self._value(fn.__defaults__)
        self._value(fn.__kwdefaults__)
        source = source_of(fn.__code__)
        if source is None:
            self._add_compiled(fn.__code__)
            chains: tuple[Chain, ...] = tuple((name,) for name in sorted(_names(fn.__code__)))
        else:
            self._put("function", source.digest)
            chains = source.chains
        for chain in chains:
            self._put(".".join(chain))
            self._resolve(fn, chain)

    def _add_compiled(self, code: CodeType) -> None:
        """A function without source: its byte code."""
        self._put("code", code.co_code.hex(), *code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_compiled(constant)
            else:
                self._value(constant)

    def _resolve(self, fn: FunctionType, chain: Chain) -> None:
        """The value of a dotted name that a function reads, as far as it is known."""
        found = _find_variable(fn, chain[0])
        for at, name in enumerate(chain[1:], 1):
            if isinstance(found, ModuleType) and _library(found.__name__) is not None:
                self._put(found.__name__, *chain[at:])
                return
            part = inspect.getattr_static(found, name, _MISSING)
            if part is _MISSING:
                break
            found = part
        if found is not _MISSING:
            self._value(found)

    def _value(self, found: Any) -> None:
        method = getattr(found, "__func__", getattr(found, "fget", found))
        if (base := base_function(method)) is not None:
            if not base.__code__.co_filename.startswith("<"):  # as that of a dataclass
                self.function(base)
        elif isinstance(found, enum.Enum):
            self._put(type(found).__qualname__, found.name)
            self._value(found.value)
        elif type(found) in _ATOMS:
            self._put(type(found).__name__, repr(found))
        elif isinstance(found, ModuleType):
            self._put(found.__name__)
        elif _library_of(found) is not None and isinstance(found, type):
            self._put(f"{_library_of(found)}", found.__qualname__)
        elif not self._is_repeated(found):
            self._parts(found)

    def _parts(self, found: Any) -> None:
        """A container, a class, or an instance by its class and its attributes."""
        self._put("(", type(found).__name__)
        if isinstance(found, dict):
            items = list(found.items())
        elif isinstance(found, type):
            items = [item for item in sorted(vars(found).items()) if item[0] not in _NO_MEMBERS]
        elif isinstance(found, tuple | list):
            items = list(enumerate(found))
        elif isinstance(found, set | frozenset):
            items = list(enumerate(sorted(found, key=repr)))
        else:
            own = _library_of(type(found)) is None
            items = [("class", type(found))] if own else []
            items += sorted(getattr(found, "__dict__", {}).items())
            text = repr(found)
            self._put("" if " at 0x" in text or own else text)
        for name, value in items:
            self._value(name)
            self._value(value)
        self._put(")")


#: Members that Python adds to every class, or that do not affect it.
_NO_MEMBERS = frozenset(
    {"__dict__", "__doc__", "__module__", "__qualname__", "__weakref__", "__firstlineno__"}
    | {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
)


def _find_variable(fn: FunctionType, name: str) -> Any:
    """The value of a captured or global variable; `_MISSING` for builtins."""
    if name in fn.__code__.co_freevars:
        try:
            return (fn.__closure__ or ())[fn.__code__.co_freevars.index(name)].cell_contents
        except (ValueError, IndexError):
            return _MISSING
    return fn.__globals__.get(name, _MISSING)


def _names(code: CodeType) -> set[str]:
    return {*code.co_names, *code.co_freevars}


def _library(module: str) -> str | None:
    top = module.partition(".")[0]
    return top if top in _LIBRARIES else None


def _library_of(found: Any) -> str | None:
    """The library that defines a function or class; None for other code."""
    return _library(getattr(found, "__module__", None) or "")


def settle_cache_keys() -> None:
    """Make Triton's cache keys the same whatever process and machine they are made in; for good.

    The key of a host module has what the program `file` says of Python, where there is one.

    Triton (3.6, 3.7) adds the global constants of a called function to the hash of its caller only
    if the called function has a hash by then (`DependenciesFinder._update_hash`). A worker that
    builds or launches two kernels with a common function in another order would get another hash,
    and compile what was built for it. From now on a called function is hashed before its caller.
    A hash is kept: a device worker calls this before anything is launched, as references are.
    """
    from triton.runtime import build, jit

    build.platform_key = _describe_platform
    finder = getattr(jit, "DependenciesFinder", None)
    before = getattr(finder, "_update_hash", None)
    if finder is None or before is None or hasattr(before, _SETTLED):
        return

    def update_hash(self: Any, function: Any) -> None:
        _ = function.cache_key
        before(self, function)

    setattr(update_hash, _SETTLED, True)
    finder._update_hash = update_hash


def _describe_platform() -> str:
    return f"{platform.machine()},{platform.system()},64bit,ELF"
