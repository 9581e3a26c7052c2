"""The identity of code: a digest of everything that functions reach.

The walk starts at functions or methods and follows the names that they read: other functions in
any file, attributes of modules and of `self`, captured values, defaults and module-level constants.
Constants enter the digest by value. The walk ends at the standard library, torch, triton and numpy,
and at other installed libraries, which enter it by name and version. A function under `@triton.jit`
is followed wherever it is defined. Comments, docstrings, line numbers, file names and module names
do not affect the digest. It is equal in every process and Python version.

Where a name cannot be followed, as behind `__getattr__` or a descriptor, the whole object that it
is read from enters the digest. A value that cannot be digested is an `IdentityError`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from . import _values
from ._origin import Origins, is_foreign, version
from ._syntax import Chain, FunctionSource, source_of, stamp
from ._values import place_text

__all__ = ["Closure", "IdentityError", "closure_of", "kernel_hash", "place_text", "stamp"]

_LENGTH = 16
#: No such attribute, or one that only running code can tell.
_MISSING = object()
#: An attribute that entered the digest when it was found.
_WALKED = object()
#: Builtins that reach every name of a module.
_REACH_ALL = frozenset({"globals", "eval", "exec"})


class IdentityError(TypeError):
    """A value that cannot enter a digest; the message names the place, `hint` the remedy."""

    hint = (
        "build it inside the function that uses it, or keep what matters of it as numbers, texts, "
        "tuples or dataclasses"
    )


@dataclass(frozen=True, slots=True)
class Closure:
    """The code and constants that some functions reach."""

    #: Digest of everything reached, 16 hexadecimal digits.
    digest: str
    #: Digests of the jitted functions that host code names, each with its closure; sorted.
    kernels: tuple[str, ...]
    #: The files of the code, each with its modification time (ns) and size.
    files: Mapping[str, tuple[int, int]]


def kernel_hash(fn: Any) -> str:
    """The digest of a kernel's device code: the function, its callees and captured constants.

    fn: a function under `@triton.jit` and any further decorators. Raises TypeError otherwise.
    """
    walk = _Walk()
    base = _base_function(fn)
    if base is None:
        raise TypeError(f"{fn!r} is not a function under @triton.jit")
    walk.kernel(base)
    return walk.digest()


def closure_of(
    owner: object,
    methods: Sequence[str],
    *,
    given: Sequence[type] = (),
    ignored: Mapping[type, frozenset[str]] | None = None,
) -> Closure:
    """Everything that an object's methods reach.

    given: the classes of their arguments. ignored: by class, attributes that do not affect the
    digest where the walk reaches a whole instance.
    """
    walk = _Walk(owner, ignored or {})
    for cls in given:
        walk.value(cls)
    for name in methods:
        walk.put(f"method {name}")
        walk.attributes(owner, (name,))
    return Closure(
        walk.digest(),
        tuple(sorted({kernel_hash(fn) for fn in walk.kernels})),
        dict(walk.files),
    )


class _Walk:
    """One walk. Everything it reaches enters one digest, in order."""

    def __init__(
        self, owner: object = None, ignored: Mapping[type, frozenset[str]] | None = None
    ) -> None:
        own = type(owner).__module__.partition(".")[0] if owner is not None else ""
        self.origins = Origins(frozenset({own} - {""}))
        self.owner = owner
        self.ignored = ignored or {}
        self.files: dict[str, tuple[int, int]] = {}
        self.kernels: list[FunctionType] = []
        self._sha = hashlib.sha256()
        self._seen: dict[tuple[int, int], int] = {}
        self._kept: list[object] = []
        self._open: set[int] = set()
        self._on_device = 0
        self._places: list[str] = []

    def digest(self) -> str:
        return self._sha.hexdigest()[:_LENGTH]

    def put(self, *texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._sha.update(b"%d:" % len(data) + data)

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        """Name the place of what is walked inside, for errors."""
        self._places.append(place)
        yield  # after an error the places stay, because it names them
        self._places.pop()

    def _make_error(self, found: Any, why: str) -> IdentityError:
        functions = [at for at, place in enumerate(self._places) if place.endswith(":")]
        place = " ".join(self._places[functions[-1] if functions else 0 :])
        cls = type(found)
        return IdentityError(
            f"{place or 'a value'} is a {cls.__module__}.{cls.__qualname__}, which cannot be part "
            f"of an identity ({why})"
        )

    # -- functions -----------------------------------------------------------------------------
    def kernel(self, fn: FunctionType) -> None:
        """A jitted function. It is followed wherever it is defined, except in Triton itself."""
        if self.origins.library(fn.__globals__.get("__name__") or "") == "triton":
            self.put("triton", fn.__qualname__)
            return
        if not self._on_device and fn not in self.kernels:
            self.kernels.append(fn)
        self._on_device += 1
        self._code(fn, None)
        self._on_device -= 1

    def function(self, fn: FunctionType, owner: object = None) -> None:
        """A plain function. owner: the object bound to its first argument; None where unknown."""
        module = fn.__globals__.get("__name__") or ""
        library = self.origins.library(module, fn.__code__.co_filename)
        if library is None:
            self._code(fn, owner)
        else:
            self.put("library", version(library), fn.__qualname__)
        wrapped = fn.__dict__.get("__wrapped__") or fn.__dict__.get("_torchdynamo_orig_callable")
        if isinstance(wrapped, FunctionType):
            self.function(wrapped, owner)
        elif wrapped is not None:
            self.value(wrapped)
        elif library is not None:
            self._add_captured(fn)
        registry = fn.__dict__.get("registry") if library == "python" else None
        if registry is not None:  # the implementations of functools.singledispatch
            self.value(registry)

    def _code(self, fn: FunctionType, owner: object) -> None:
        if self._is_repeated(fn, owner):
            return
        code = fn.__code__
        self.files.setdefault(code.co_filename, stamp(code.co_filename))
        source = source_of(code, jitted=bool(self._on_device))
        self.value(fn.__defaults__)
        self.value(fn.__kwdefaults__)
        if source is None:
            self._add_compiled(fn, code)
            return
        self.put("function", source.digest)
        with self._at(f"{code.co_filename}:{code.co_firstlineno}, {fn.__qualname__}:"):
            for chain in source.chains:
                self.put(".".join(chain))
                with self._at(".".join(chain)):
                    self._resolve(fn, source, chain, owner)
            for name in source.loaded:
                if name.startswith(".") or not is_foreign(name):
                    self.put("import", name)
                    self._follow(self._find_imported(fn, name, ""), None)
            for name in source.supers:
                self.put("super", name)
                with self._at(f"super().{name}"):
                    self._add_inherited(owner, name)
            self._add_carried(fn, owner)

    def _add_carried(self, fn: FunctionType, owner: object) -> None:
        """What a function holds beside its code: its attributes, and an owner passed as `*args`."""
        for name, found in sorted(fn.__dict__.items()):
            if not name.startswith(("__", "_torch")):
                self.put(name)
                with self._at(f"attribute {name}"):
                    self.value(found)
        code = fn.__code__
        if owner is not None and not code.co_argcount and code.co_flags & inspect.CO_VARARGS:
            self.value(owner)

    def _add_inherited(self, owner: object, name: str) -> None:
        """What `super().name` may mean: the member in each base of an object's class."""
        if owner is None:
            return
        for cls in (owner if isinstance(owner, type) else type(owner)).__mro__:
            found = vars(cls).get(name)
            if isinstance(found, FunctionType):
                self.function(found, owner)
            elif found is not None and self._is_own(cls):
                self._follow(self._find_member(found, name, type(owner), owner), owner)

    def _add_compiled(self, fn: FunctionType, code: CodeType) -> None:
        """A function without source: its byte code and the names in it."""
        self.put("code", code.co_code.hex(), *code.co_names, *code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_compiled(fn, constant)
            else:
                self.value(constant)
        for name in (*code.co_names, *code.co_freevars):
            found = self._find_variable(fn, name) if name != "__class__" else _MISSING
            if found is not _MISSING:
                self.value(found)

    def _add_captured(self, fn: FunctionType) -> None:
        """The own functions that a library's wrapper captures."""
        for cell in fn.__closure__ or ():
            try:
                found = cell.cell_contents
            except ValueError:
                continue
            if callable(found) and not isinstance(found, type):
                self.value(found)

    def _follow(self, found: Any, whole: object) -> None:
        """Digest what was found; whole: the object that it was read from."""
        if found is not _WALKED:
            self.value(whole if found is _MISSING else found)

    # -- names ---------------------------------------------------------------------------------
    def _resolve(
        self, fn: FunctionType, source: FunctionSource, chain: Chain, owner: object
    ) -> None:
        first, rest = chain[0], chain[1:]
        code = fn.__code__
        if code.co_argcount and first == code.co_varnames[0]:
            if owner is not None:
                self.attributes(owner, rest)
            return
        if first in source.imports:
            found = self._find_imported(fn, *source.imports[first])
        else:
            found = self._find_variable(fn, first)
        if found is not _MISSING:
            self.attributes(found, rest)
        elif first in _REACH_ALL:
            self._names_of(fn.__globals__)

    def _find_variable(self, fn: FunctionType, name: str) -> Any:
        """The value of a captured or global variable; `_MISSING` for builtins and dunder names."""
        if name in fn.__code__.co_freevars:
            try:
                found = (fn.__closure__ or ())[fn.__code__.co_freevars.index(name)].cell_contents
            except (ValueError, IndexError):
                return _MISSING
            return found
        if name in _values.MODULE_NAMES:
            return _MISSING
        return fn.__globals__.get(name, _MISSING)

    def _find_imported(self, fn: FunctionType, module: str, name: str) -> Any:
        """The value that an import statement inside a function binds. No library is imported."""
        try:
            full = importlib.util.resolve_name(module, fn.__globals__.get("__package__") or "")
            if is_foreign(full):
                self.put("library", version(full.partition(".")[0]), full, name)
                return _MISSING
            found = importlib.import_module(full)
            if name and not hasattr(found, name):
                return importlib.import_module(f"{full}.{name}")
            return getattr(found, name) if name else found
        except Exception as error:
            self.put("missing", type(error).__name__)
            return _MISSING

    def attributes(self, found: Any, names: Iterable[str]) -> None:
        """Follow a dotted name from a value, as far as the attributes are known.

        Where one is not, the whole value enters the digest.
        """
        rest = list(names)
        while rest:
            if isinstance(found, ModuleType):
                library = self.origins.library(found.__name__, getattr(found, "__file__", "") or "")
                if library in _values.TOOLS:
                    self.put(found.__name__, *rest)
                    return
            part = self._part(found, rest.pop(0))
            if part is _WALKED:
                return
            if part is _MISSING:
                break
            found = part
        self.value(found)

    def _part(self, found: Any, name: str) -> Any:
        if isinstance(found, ModuleType):
            return self._in_module(found, name)
        if isinstance(found, FunctionType):
            self.value(found)
            return found.__doc__ if name == "__doc__" else _WALKED
        if isinstance(found, type):
            return self._member(found, name, found) if self._is_own(found) else _MISSING
        if _base_function(found) is None and self._is_own(type(found)):
            return self._state(found, name)
        return _MISSING

    def _in_module(self, module: ModuleType, name: str) -> Any:
        """A name of a module. An own submodule is imported, as the code that names it does."""
        found = vars(module).get(name, _MISSING)
        if found is _MISSING and hasattr(module, "__path__") and not is_foreign(module.__name__):
            with suppress(Exception):
                return importlib.import_module(f"{module.__name__}.{name}")
        return found

    def _state(self, instance: object, name: str) -> Any:
        """A stored attribute of an instance. No property is evaluated."""
        cls = type(instance)
        if name == "__class__":
            return cls
        state = getattr(instance, "__dict__", {})
        for key in _values.spellings(cls, name):
            if key in state and not _values.is_computed(inspect.getattr_static(cls, key, None)):
                found = state[key]
                if isinstance(found, FunctionType):  # passed in by the code that made the instance
                    self.origins.packages.add((found.__module__ or "").partition(".")[0])
                return found
        return self._member(cls, name, instance)

    def _member(self, cls: type, name: str, owner: object) -> Any:
        """An attribute of a class. Methods and properties are walked immediately.

        owner: the instance that it is read from, or the class itself.
        """
        if isinstance(owner, type) and isinstance(self.owner, owner):
            owner = self.owner
        for key in _values.spellings(cls, name):
            found = inspect.getattr_static(cls, key, _MISSING)
            if inspect.ismemberdescriptor(found):  # a slot
                return getattr(owner, key, _MISSING)
            if owner is cls and any(key in vars(base) for base in cls.__mro__):
                return self._find_member(found, name, cls, None)
            if found is not _MISSING:
                return self._find_member(found, name, cls, owner)
        return _MISSING

    def _find_member(self, found: Any, name: str, cls: type, owner: object) -> Any:
        """A member of a class as an instance shows it. owner: the instance; None where unknown."""
        if isinstance(found, classmethod):
            # Where the whole class is in the digest, no member of it needs to be followed.
            found, owner = found.__func__, None if (id(cls), id(None)) in self._seen else cls
        elif isinstance(found, staticmethod):
            found, owner = found.__func__, None
        elif isinstance(found, property):
            found = found.fget
        elif hasattr(found, "func") and hasattr(found, "attrname"):  # a cached property
            found = found.func
        if isinstance(found, FunctionType):
            self.put(name)
            self.function(found, owner)
            return _WALKED
        inner = _values.find_wrapped(found)
        if isinstance(inner, FunctionType) and owner is not None:
            self.put("(", type(found).__name__)
            self.function(inner, owner)
            self.put(")")
            return _WALKED
        if not _values.is_descriptor(found):
            return found
        if self._is_own(type(found)):
            self.value(found)
        return _MISSING

    # -- values --------------------------------------------------------------------------------
    def value(self, found: Any) -> None:
        """Any value, by its type."""
        try:
            self._value(found)
        except (IdentityError, RecursionError):
            raise
        except Exception as error:
            raise self._make_error(found, f"{type(error).__name__}: {error}") from error

    def _value(self, found: Any) -> None:
        if _values.is_atom(found):
            self.put(type(found).__name__, repr(found))
        elif (base := _base_function(found)) is not None and not isinstance(found, FunctionType):
            self._add_decorated(found, base)
        elif isinstance(found, FunctionType):
            self.function(found)
        elif isinstance(found, type):
            self._class(found)
        elif isinstance(found, ModuleType):
            self._module(found)
        elif (parts := _values.parts(found)) is not None:
            self._parts(found, parts)
        elif (text := _values.text(found, own=self._is_own(type(found)))) is not None:
            self.put(type(found).__qualname__, text)
            self._beside(found)
        else:
            self._instance(found)

    def _beside(self, found: Any) -> None:
        """What an own class adds to a container, a number, a text or an enumeration."""
        if self._is_own(type(found)) and not self._is_repeated(found):
            self._class(type(found))
            for name, part in sorted(_values.state(found).items()):
                self.put(name)
                self.value(part)

    def _parts(self, found: Any, parts: Iterable[Any]) -> None:
        """A container, a bound method or the like: its type and its parts in order."""
        if id(found) in self._open:
            self.put("again")
            return
        self._open.add(id(found))
        self.put("(", type(found).__name__)
        if isinstance(found, set | frozenset):
            self.put(*sorted(self._separate_digest(part) for part in parts))
        elif inspect.ismethod(found):
            self._add_bound(found)
        else:
            for part in parts:
                self.value(part)
        self._beside(found)
        self.put(")")
        self._open.discard(id(found))

    def _add_bound(self, method: Any) -> None:
        if isinstance(method.__func__, FunctionType):
            self.function(method.__func__, method.__self__)
        else:
            self.value(method.__func__)

    def _separate_digest(self, part: Any) -> str:
        """The digest of one value alone. It gives the members of a set an order."""
        walk = _Walk(self.owner, self.ignored)
        walk._places = [*self._places]
        walk.value(part)
        self.files.update(walk.files)
        return walk.digest()

    def _add_decorated(self, found: Any, base: FunctionType) -> None:
        """A decorated kernel: the functions of heuristics, and the arguments that are reset."""
        while not isinstance(found, FunctionType):
            state = getattr(found, "__dict__", {})
            for name in ("values", "reset_to_zero", "restore_value"):
                given = state.get(name, state.get("options", {}).get(name))
                if given:
                    self.put(name)
                    self.value(given)
            found = state["fn"]
        self.kernel(base)

    def _class(self, cls: type) -> None:
        """A class: all members of an own class, the name of a library's."""
        if not self._is_own(cls):
            library = self.origins.library(cls.__module__) or cls.__module__
            self.put("library", version(library), cls.__qualname__)
            return
        if self._is_repeated(cls):
            return
        self.put("class", cls.__qualname__)
        dropped = {n for of, names in self.ignored.items() if issubclass(cls, of) for n in names}
        for base in cls.__mro__:
            skipped = _values.list_skipped(base) | dropped
            if not self._is_own(base):
                self.put(base.__qualname__)
                continue
            for name, member in sorted(vars(base).items()):
                if name not in skipped and not _values.is_generated(base, name, member):
                    self.put(name)
                    with self._at(f"{base.__qualname__}.{name}"):
                        self.value(_values.unwrap(member))
            self.value(_values.fields(base))
        if self._is_own(type(cls)):
            self.value(type(cls))

    def _module(self, module: ModuleType) -> None:
        library = self.origins.library(module.__name__, getattr(module, "__file__", "") or "")
        if library is not None:
            self.put("library", version(library), module.__name__)
        else:
            self._names_of(vars(module))

    def _names_of(self, module: dict[str, Any]) -> None:
        """All names of a module."""
        if self._is_repeated(module):
            return
        self.put("module")
        for name, member in sorted(module.items()):
            if name not in _values.MODULE_NAMES:
                self.put(name)
                with self._at(f"{module.get('__name__')}.{name}"):
                    self.value(member)

    def _instance(self, found: Any) -> None:
        """Any other object: the source of its type, and its state."""
        cls = type(found)
        own = self._is_own(cls)
        if self._is_repeated(found):
            return
        self.put("instance")
        self._class(cls)
        if not own and _values.is_opaque(found):
            return
        for name, value in sorted(_values.state(found).items()):
            if not own and _values.is_position(value):
                continue
            self.put(name)
            if own and isinstance(value, FunctionType):
                self.origins.packages.add((value.__module__ or "").partition(".")[0])
            with self._at(f"attribute {name}"):
                self.value(value)
        if any(_values.is_compiled(base) and not self._is_own(base) for base in cls.__mro__):
            self.put("reduced")
            for part in self._reduce(found):
                self.value(part)

    def _reduce(self, found: Any) -> Iterable[Any]:
        """What a pickle of a compiled object holds; nothing for a handle into torch or Triton,
        such as a registration of operators, which stands for code that is digested elsewhere."""
        try:
            return _values.reduce_object(found)
        except TypeError:
            if self.origins.library(type(found).__module__) in _values.TOOLS - {"python"}:
                return ()
            raise

    def _is_own(self, cls: type) -> bool:
        return self.origins.library(cls.__module__) is None and cls.__module__ != "builtins"

    def _is_repeated(self, found: object, other: object = None) -> bool:
        """Whether the walk has reached this before. Then its first position enters the digest."""
        key = id(found), id(other)
        if key in self._seen:
            self.put("seen", f"{self._seen[key]}")
            return True
        self._seen[key] = len(self._seen)
        self._kept += [found, other]
        return False


def _base_function(found: Any) -> FunctionType | None:
    """The function below a kernel's decorators, Triton's or ours; None for any other value."""
    if isinstance(found, FunctionType):
        return found
    while not isinstance(found, FunctionType):
        state = getattr(found, "__dict__", None)
        if not isinstance(state, dict) or not ("arg_names" in state or "signature" in state):
            return None
        found = state.get("fn")
    return found
