"""Import names of the farm: which module `import workers` gives, and packages that load lazily.

`search_spaces`, `workers`, `results_db` and `reports` stand at top level, where a script may have
a module of the same name. As soon as a process imports a part of the farm, the four names are
reserved: they resolve to the packages that are installed next to `tuner`, whatever the import path
says. A conflict with a module of the user raises one `ImportClash` that names both files.

`tuner.runtime` reserves nothing, so a serving process keeps its own modules of these names.
Imports the standard library only; every package may import this module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import cast

#: The name on PyPI, where `tuner` is a program for musical instruments.
DISTRIBUTION = "kernel-tuning-farm"
#: The packages at top level that belong to the farm, besides `tuner`.
PACKAGES = ("search_spaces", "workers", "results_db", "reports")
#: The folder that holds all of them.
ROOT = Path(__file__).resolve().parents[2]
#: Parts of `tuner` that kernel libraries import and that reserve no name.
_UNRESERVED = frozenset({"runtime", "base"})


class ImportClash(ImportError):
    """A module of the user has the import name of one of the farm's packages."""

    def __init__(self, package: str, theirs: Path, problem: str) -> None:
        self.remedy = f"rename {theirs}"
        super().__init__(
            f"{problem}: the import name {package} belongs to tuner ({ROOT / package}), "
            f"so {self.remedy}",
            name=package,
            path=f"{theirs}",
        )


def reserve() -> None:
    """Let the four names mean the farm's packages from now on.

    Raises `ImportClash` where a module of the user was imported under one of them before.
    """
    _FINDER.reserve()


def user_module(package: str, folders: Sequence[str] | None = None) -> Path | None:
    """The first module or package in `folders` that has the name of one of the farm's packages.

    folders: the import path by default.
    """
    for folder in sys.path if folders is None else folders:
        base = Path(folder or ".").resolve()
        if base == ROOT:
            continue
        for file in (base / package / "__init__.py", base / f"{package}.py"):
            if file.is_file():
                return file
    return None


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a package that imports each of its names at first use.

    homes: for every module the names that it defines, as after `import`: `name`, or `name as other`
    where the package has another name for it. The package's own names are modules. It lists the
    same under `TYPE_CHECKING`.
    """
    listed = [(entry, module) for module, entries in homes.items() for entry in entries]
    places = {entry.split()[-1]: (module, entry.split()[0]) for entry, module in listed}

    def __getattr__(name: str) -> object:
        if name not in places:
            raise _missing(package, name, sys._getframe(1))
        module, attribute = places[name]
        if package == "tuner" and module.removeprefix("tuner.") not in _UNRESERVED:
            reserve()
        if module == package:
            return importlib.import_module(f"{package}.{attribute}")
        return getattr(importlib.import_module(module), attribute)

    return __getattr__


def _missing(package: str, name: str, importer: FrameType) -> Exception:
    """The error for a name that a package lacks; it may be in the user's module of that name."""
    theirs = None
    if package in PACKAGES and not name.startswith("_") and f"{package}.{name}" not in sys.modules:
        theirs = user_module(package)
    if theirs is None:
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    clash = ImportClash(package, theirs, f"{theirs} cannot be imported for its {name}")
    # `hasattr` expects an AttributeError, whose text `from package import name` would replace.
    return clash if _is_from_import(importer) else AttributeError(f"{clash}")


def _is_from_import(frame: FrameType) -> bool:
    from opcode import opmap

    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def _package_file(package: str) -> Path:
    return ROOT / package / "__init__.py"


def _file_of(module: ModuleType) -> Path | None:
    """The file of a module, or the folder of a package without `__init__.py`."""
    places: Iterator[str] = iter(getattr(module, "__path__", ()))
    place = getattr(module, "__file__", None) or next(places, None)
    return Path(place).resolve() if place else None


class _Finder:
    """Finds the farm's packages before the import path is searched."""

    def __init__(self) -> None:
        self._reserved = False

    def reserve(self) -> None:
        if self._reserved:
            return
        for package in PACKAGES:
            module = sys.modules.get(package)
            found = _file_of(module) if module is not None else None
            if found is not None and _package_file(package).is_file():
                if found == _package_file(package):
                    continue
                raise ImportClash(package, found, f"{found} was imported before tuner")
        self._reserved = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top == "tuner":
            if rest and rest.partition(".")[0] not in _UNRESERVED:
                self.reserve()
            return None
        if top not in PACKAGES:
            return None
        if not rest:
            return PathFinder.find_spec(name, [f"{ROOT}"]) if self._reserved else None
        return self._submodule(name, top, path)

    def _submodule(self, name: str, top: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """A module of one of the four packages, which reserves the names if it is the farm's."""
        module = sys.modules.get(top)
        if module is None or _file_of(module) != _package_file(top):
            return None
        self.reserve()
        spec = PathFinder.find_spec(name, path)
        if spec is None and (theirs := user_module(top)) is not None:
            base = theirs.parent.joinpath(*name.split(".")[1:])
            if theirs.name == "__init__.py" and (
                base.is_dir() or base.with_suffix(".py").is_file()
            ):
                raise ImportClash(top, theirs, f"{theirs} cannot be imported for {name}")
        return spec


def _install_finder() -> _Finder:
    """The finder of this process; the same one where `tuner` is imported again."""
    for finder in sys.meta_path:
        if type(finder).__module__ == __name__:
            return cast("_Finder", finder)
    created = _Finder()
    sys.meta_path.insert(0, created)
    return created


_FINDER = _install_finder()
