"""The origin of code. A digest covers own code line by line, and a library by its version."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from types import ModuleType

#: Compilers and array libraries. A toolchain records their versions.
_TOOLS = frozenset({"torch", "triton", "numpy"})
#: The farm's own packages are own code wherever they are installed.
_OURS = frozenset({"search_spaces", "workers", "results_db", "reports", "tuner"})
_INSTALLED = ("site-packages", "dist-packages")
#: Modules of the farm that declare, find, import and trace code, with what is below them. No launch
#: depends on them, and some have state, which differs from process to process.
_MACHINERY = frozenset(
    {
        "search_spaces.absent_device",
        "search_spaces.declaration",
        "search_spaces.errors",
        "search_spaces.import_stamps",
        "search_spaces.records",
        "search_spaces.registry",
        "search_spaces.sibling_imports",
        "search_spaces.source_changes",
        "search_spaces.source_positions",
        "search_spaces.source_reach",
        "tuner.tracing",
    }
)
_FARM = "tuner"


class Origins:
    """Distinguishes own code from libraries. packages: more top-level packages of own code."""

    def __init__(self, packages: frozenset[str] = frozenset()) -> None:
        self.packages = set(packages)

    def library(self, module: str, file: str = "") -> str | None:
        """The library that contains a module, given its file; None for own code."""
        top = module.partition(".")[0]
        if top in _TOOLS:
            return top
        if _MACHINERY & {module, ".".join(module.split(".")[:2])}:
            return _FARM
        if not file:
            file = _file(module)
        if _is_standard(file, top):
            return "python"
        if top in _OURS or top in self.packages or not _is_installed(file):
            return None
        return top


def is_foreign(module: str) -> bool:
    """Whether a module is part of Python or of an installed library, by the file it is in."""
    top = module.partition(".")[0]
    if top in _OURS:
        return False
    if top in _TOOLS or top in sys.stdlib_module_names:
        return True
    found = find_spec(top)
    return found is not None and _is_installed(found.origin or "")


def version(library: str) -> str:
    """The library's name, with its version where no toolchain records it."""
    return library if library in {*_TOOLS, "python", _FARM} else _read_version(library)


@cache
def _read_version(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(library, ())
        return " ".join([library, *(f"{name} {metadata.version(name)}" for name in sorted(names))])


def _file(module: str) -> str:
    found = sys.modules.get(module)
    return (getattr(found, "__file__", None) or "") if isinstance(found, ModuleType) else ""


@cache
def _is_standard(file: str, top: str) -> bool:
    if not file or file.startswith("<frozen "):
        return top in sys.stdlib_module_names
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    inside = any(file.startswith(f"{folder}/") for folder in folders)
    return inside and not _is_installed(file)


@cache
def _is_installed(file: str) -> bool:
    return any(f"/{name}/" in file.replace("\\", "/") for name in _INSTALLED)
