"""The identity of a kernel: a digest of the text of all own code that it can reach.

    identity_of(kernel).digest      16 hexadecimal digits
    identity_of(kernel).kernels     digests of the jitted functions that its host code names
    identity_of(kernel).files       the files behind it, with their stamps

Own code is that of the farm's kernels, of the user's files and of packages that are installed as
links to their source. It counts by its syntax trees, without docstrings, comments and layout: every
module that an import statement names, wherever the statement is. What the text cannot tell counts
beside it:

- what the kernel object holds (`object_state`): attributes, captured values,
- data files and compiled extensions beside the modules, where a module's text names them,
- environment variables that the text names,
- name and version of every distribution that the modules import; a toolchain has those of torch,
  Triton and numpy.

The farm's own declaration, loading and base are excluded, `EXCLUDED`. An own module that a builder
loads although no text names it is refused by `refuse_unnamed`.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

from search_spaces.errors import KernelError
from search_spaces.object_state import ObjectState, StateError
from search_spaces.records import digest
from search_spaces.source_positions import HOME, OURS, installed_package
from search_spaces.source_reach import (
    Reach,
    list_imports,
    module_file,
    package_of,
    reach_of,
    text_of,
)
from tuner.runtime.device_code import base_function, kernel_hash, stamp

#: Modules of the farm that count in no identity, with what is below them: they declare, find, load
#: and search kernels, and no launch and no check depends on them.
EXCLUDED = frozenset(
    {
        "reports",
        "results_db",
        "search_spaces.absent_device",
        "search_spaces.atomic_file",
        "search_spaces.bound",
        "search_spaces.constraints",
        "search_spaces.declaration",
        "search_spaces.dims",
        "search_spaces.errors",
        "search_spaces.feasible_walk",
        "search_spaces.foreign_imports",
        "search_spaces.foreign_json",
        "search_spaces.identity",
        "search_spaces.import_stamps",
        "search_spaces.kernel",
        "search_spaces.log_file",
        "search_spaces.measured_defaults",
        "search_spaces.near_names",
        "search_spaces.object_state",
        "search_spaces.params",
        "search_spaces.plugins",
        "search_spaces.records",
        "search_spaces.registry",
        "search_spaces.size_range",
        "search_spaces.source_changes",
        "search_spaces.source_positions",
        "search_spaces.source_reach",
        "search_spaces.space",
        "search_spaces.triton_versions",
        "tuner",
        "workers",
    }
)
#: Modules below an excluded one that count: they launch calls that were captured.
COUNTED = frozenset({"tuner.capturing"})
#: Packages whose `__init__` only lists what is below them.
_LISTS = frozenset({"search_spaces", "search_spaces.kernels"})
#: Libraries whose versions are in a toolchain.
_TOOLS = frozenset({"torch", "triton", "numpy"})
#: The import name of a file that names a kernel as `file.py:object`, which depends on its folder.
_FILE_MODULE = re.compile(r"\btuner_kernels_(\w+)_[0-9a-f]{8}\b")
#: Functions that list a folder: all files of a module's folder count where its text has one.
_LISTING = frozenset({"listdir", "iterdir", "scandir", "walk", "glob", "rglob"})
#: Files that the farm writes beside a user's code, and files that Python reads by itself.
_NO_DATA = re.compile(
    r"(^\.|^(__pycache__|measured\.json|config\.ya?ml)$|@.*\.json$"
    r"|\.(py|pyc|db|db-\w+|sqlite3?|html|log|lock|md)$)"
)
#: Sources that include others of their kind.
_SOURCES = re.compile(r"\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|hip)$")


@dataclass(frozen=True, slots=True)
class Identity:
    """The code and state behind a kernel."""

    #: Digest of everything that counts, 16 hexadecimal digits.
    digest: str
    #: Digests of the jitted functions that host code names, each with its callees; sorted.
    kernels: tuple[str, ...]
    #: The files that count, each with its modification time (ns) and size.
    files: Mapping[str, tuple[int, int]]


class Named(Protocol):
    """What is asked of a kernel."""

    name: ClassVar[str]
    #: Whether the farm wrote the file that declares it.
    written: ClassVar[bool]
    #: Where to import it from in another process; may be empty.
    spec: str


_known: dict[int, tuple[Callable[[], object], Identity]] = {}


def identity_of(kernel: Named) -> Identity:
    """The identity of a kernel; computed once per process.

    After an edit of a file, this process runs the old code and its children run the new code. The
    digest then includes the file's stamp, so that no result is reused under it. Raises
    `KernelError` where the kernel holds a value that has no digest.
    """
    known = _known.get(id(kernel))
    if known is None or known[0]() is not kernel:
        try:
            found = _Text(kernel).read()
        except StateError as error:
            raise KernelError(f"kernel {kernel.name}: {error}", error.hint) from error
        known = _known[id(kernel)] = weakref.ref(kernel), found
    found = known[1]
    stamps = {file: stamp(file) for file in found.files}
    if stamps == found.files:
        return found
    return replace(found, digest=digest([found.digest, sorted(stamps.items())]), kernels=())


def refuse_unnamed(kernel: Named, before: Iterable[str]) -> None:
    """Raise `KernelError` if a kernel has loaded an own module that no text names.

    before: names of modules that were loaded before the kernel was.
    """
    files = {*identity_of(kernel).files}
    if kernel.written:  # the file holds what the kernel object does, and names the module
        files.add(os.path.realpath(kernel.spec.rpartition(":")[0]))
    for name in sorted(sys.modules.keys() - set(before)):
        file = getattr(sys.modules.get(name), "__file__", None)
        found = os.path.realpath(file) if isinstance(file, str) else ""
        if found in files or _farm_module(found) or not _is_own(name, found, frozenset()):
            continue
        raise KernelError(
            f"kernel {kernel.name}: it has loaded {found}, which no import statement of its "
            "modules names, so that an edit of that file would not be seen",
            f"write `import {name}` in one of them",
        )


class _Text:
    """What counts for one kernel, and where it was found."""

    def __init__(self, kernel: Named) -> None:
        self.kernel = kernel
        self.reach = Reach()
        self.own: frozenset[str] = frozenset()
        self.libraries: set[str] = set()

    def read(self) -> Identity:
        kernel = self.kernel
        home = _find_home(kernel)
        self.own = frozenset({home[1].partition(".")[0], type(kernel).__module__.partition(".")[0]})
        state = ObjectState(self._is_own)
        state.add(type(kernel))
        for held, value in sorted(vars(kernel).items()):
            if held != "spec":
                state.add(held)
                state.add(value, held)
        roots = [home, *((Path(_file_of(name)), name) for name in sorted(state.modules))]
        for file, name in roots:
            if self._belongs(f"{file.resolve()}"):
                reach_of(file.resolve(), name, self._belongs, reach=self.reach, into_installed=True)
        texts = {file: text_of(file) for file in self.reach.modules}
        jitted = {kernel_hash(fn) for fn in state.jitted} | set(self._list_launched())
        data = {*state.files, *(file for file in texts for file in named_files(file))}
        code = sorted((self._label(file, home[0]), text.digest) for file, text in texts.items())
        named = sorted((Path(file).name, _digest_data(file, *stamp(file))) for file in data)
        said = [
            code,
            named,
            sorted(self._variables().items()),
            sorted({version for name in self._foreign(state) for version in [_version(name)]}),
            [_FILE_MODULE.sub(r"\1", text) for text in state.texts],
        ]
        counted = {file: stamp(file) for file in (*texts, *data)}
        return Identity(digest(said), tuple(sorted(jitted)), counted)

    def _label(self, file: str, home: Path) -> str:
        """A module's name; none for that of the kernel, whose file may be called anything."""
        if f"{home.resolve()}" == file:
            return ""
        name = self.reach.modules[file]
        return Path(file).stem if name == "__main__" else _FILE_MODULE.sub(r"\1", name)

    def _is_own(self, module: str, file: str) -> bool:
        return _is_own(module, file, self.own)

    def _belongs(self, file: str) -> bool:
        return _is_own(installed_package(file) or "", file, self.own)

    def _foreign(self, state: ObjectState) -> set[str]:
        """The top-level names of the libraries that own code imports or holds."""
        found = set(state.libraries)
        for file, module in self.reach.modules.items():
            found.update(list_imports(file, package_of(file, module)))
        tops = {name.partition(".")[0] for name in found}
        return {top for top in tops if top and _is_library(top)} - self.own

    def _variables(self) -> dict[str, str]:
        """The environment variables that own code names."""
        found: dict[str, str] = {}
        for file in self.reach.modules:
            text = text_of(file)
            parts = {part for chains in text.reads.values() for chain in chains for part in chain}
            if parts & {"environ", "getenv"} or {"os.environ", "os.getenv"} & {*text.imports}:
                # Shells set `_` to the program that they start.
                words = (text.words & {*os.environ}) - {"_"}
                found |= {word: os.environ[word] for word in words}
        return found

    def _list_launched(self) -> Iterator[str]:
        """The device code of the jitted functions that host code of own modules names."""
        seen: set[int] = set()
        lazy = self._find_lazy()
        for file, name in self.reach.modules.items():
            module = sys.modules.get(name)
            if module is None and (file in lazy or (_farm_module(file) and file.endswith(".py"))):
                with suppress(Exception):
                    module = importlib.import_module(name)
            if module is None:
                continue
            text = text_of(file)
            for function, chains in text.reads.items():
                if _find_jitted(vars(module).get(function)) is not None:
                    continue  # device code: what it calls is in its own digest
                for chain in chains:
                    fn = _find_jitted(self._find(module, text.bound, chain, lazy))
                    if fn is not None and id(fn) not in seen:
                        seen.add(id(fn))
                        yield kernel_hash(fn)

    def _find_lazy(self) -> set[str]:
        """The modules that functions import and that reach device code: they may be imported here.

        What a script imports below `if __name__ == "__main__"` is not, nor are modules without
        device code: their import may do anything.
        """
        texts = {file: text_of(file) for file in self.reach.modules}
        device = {
            file
            for file, text in texts.items()
            if any(name.partition(".")[0] == "triton" for name in text.imports)
        }
        named: set[str | None] = set()
        for file, module in self.reach.modules.items():
            package = package_of(file, module)
            for where, name in texts[file].bound.values():
                with suppress(ImportError):
                    full = importlib.util.resolve_name(where, package)
                    named |= {module_file(full), module_file(f"{full}.{name}")}
        return {file for file in self.reach.dependents(device) if file in named}

    def _find(
        self,
        module: ModuleType,
        bound: Mapping[str, tuple[str, str]],
        chain: tuple[str, ...],
        lazy: set[str],
    ) -> Any:
        """The value of a dotted name in a module; None where it is not known."""
        first, *rest = chain
        found = vars(module).get(first)
        if found is None and first in bound:
            where, name = bound[first]
            with suppress(Exception):
                full = importlib.util.resolve_name(where, module.__package__ or "")
                file = module_file(full) or ""
                if file in lazy or (_farm_module(file) and is_counted(full)):
                    found = importlib.import_module(full)
                    found = getattr(found, name, None) if name else found
        for name in rest:
            found = inspect.getattr_static(found, name, None) if found is not None else None
        return found


def _find_jitted(found: Any) -> Any:
    """The function below `@triton.jit` and other decorators; None for plain functions."""
    return None if inspect.isfunction(found) or found is None else base_function(found)


# -- what is own -----------------------------------------------------------------------------------
def _is_own(module: str, file: str, packages: frozenset[str]) -> bool:
    """Whether a module counts by its text. packages: installed ones that are own all the same."""
    if not file or not os.path.isfile(file):
        return False
    ours = _farm_module(file)
    if ours is not None:
        return is_counted(ours)
    top = module.partition(".")[0]
    if top in _TOOLS:
        return False
    if installed_package(file) is not None:
        return top in packages
    return not file.startswith(_standard())


def is_counted(module: str) -> bool:
    """Whether a module of the farm is part of identities."""
    parts = module.split(".")
    above = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if module in _LISTS:
        return False
    return bool(above & COUNTED) or not above & EXCLUDED


@functools.cache
def _standard() -> tuple[str, ...]:
    return tuple(f"{Path(sysconfig.get_path(p)).resolve()}/" for p in ("stdlib", "platstdlib"))


@functools.lru_cache(maxsize=16384)
def _farm_module(file: str) -> str | None:
    """The name of a module of the farm; None for any other file."""
    try:
        parts = Path(file).relative_to(HOME).with_suffix("").parts
    except ValueError:
        return None
    if not parts or parts[0] not in OURS:
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_home(kernel: Named) -> tuple[Path, str]:
    """The file whose text makes a kernel, with the name of its module: that of its spec, or that
    of its class, where the spec is a name and where the farm has written the file."""
    place = "" if kernel.written else kernel.spec.rpartition(":")[0]
    if place.endswith(".py"):
        file = Path(place).resolve()
        loaded = sys.modules.copy().items()
        names = (n for n, m in loaded if f"{getattr(m, '__file__', None)}" == f"{file}")
        return file, next(names, file.stem)
    name = place or type(kernel).__module__
    return Path(_file_of(name)), name


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


@functools.lru_cache(maxsize=4096)
def _is_library(top: str) -> bool:
    """Whether a top-level module is of an installed distribution that no toolchain names."""
    if top in _TOOLS or top in OURS or top in sys.stdlib_module_names:
        return False
    found = sys.modules.get(top)
    origin = getattr(found, "__file__", None)
    if found is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)
            origin = spec.origin if spec is not None else None
    return origin is None or installed_package(origin) is not None


@functools.cache
def _version(library: str) -> str:
    """A library with the versions of the distributions that it is of."""
    with suppress(metadata.PackageNotFoundError):
        return f"{library} {metadata.version(library)}"
    names = _distributions(tuple(sys.path)).get(library, ())
    return " ".join([library, *(f"{name} {metadata.version(name)}" for name in sorted(set(names)))])


@functools.lru_cache(maxsize=1)
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


# -- data files ------------------------------------------------------------------------------------
def named_files(file: str) -> set[str]:
    """The data files and extensions that a module's text names: beside it, below, or by a path.

    A word of a text names a file by its name, its stem, its ending or a wildcard. Folders are
    entered where a word names them. What the farm writes does not count.
    """
    return set(_find_named(file, stamp(file), stamp(os.path.dirname(file)), os.getcwd()))


@functools.lru_cache(maxsize=4096)
def _find_named(file: str, _own: object, _folder: object, _working: object) -> frozenset[str]:
    text = text_of(file)
    words = {word for word in text.words if any(c.isalnum() or c in "*?" for c in word)}
    parts = {part for chains in text.reads.values() for chain in chains for part in chain}
    lists = bool(parts & _LISTING)
    found = set(_list_named(os.path.dirname(file), frozenset(words), lists))
    for word in words:
        if "." in word and not word.startswith(".") and os.path.isfile(word):
            found.add(os.path.realpath(word))
    if any(_SOURCES.search(path) for path in found):
        folders = {os.path.dirname(path) for path in found}
        found |= {path for folder in folders for path in _entries(folder) if _SOURCES.search(path)}
    return frozenset(path for path in found if not _NO_DATA.search(os.path.basename(path)))


def _list_named(folder: str, words: frozenset[str], lists: bool) -> Iterator[str]:
    for path in _entries(folder):
        name = os.path.basename(path)
        if _NO_DATA.search(name) or not (lists or _is_named(name, words)):
            continue
        if not os.path.isdir(path):
            yield path
        elif _is_named(name, words) and not os.path.isfile(f"{path}/__init__.py"):
            yield from _list_named(path, words, lists)


def _is_named(name: str, words: frozenset[str]) -> bool:
    stem, _, ending = name.rpartition(".")
    if {name, stem, name.partition(".")[0], f".{ending}", ending if stem else name} & words:
        return True
    return any(
        name.endswith(word) if "." in word else fnmatch.fnmatch(name, word)
        for word in words
        if "." in word or "*" in word or "?" in word
    )


def _entries(folder: str) -> list[str]:
    root = os.path.realpath(folder)
    try:
        return [f"{root}/{name}" for name in sorted(os.listdir(root))]
    except OSError:
        return []


@functools.lru_cache(maxsize=4096)
def _digest_data(file: str, modified: int, size: int) -> str:
    try:
        with open(file, "rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        return type(error).__name__
