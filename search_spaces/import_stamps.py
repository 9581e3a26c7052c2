"""The state of files when their modules were imported, for modules that kernels import."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from tuner.runtime.device_code import stamp

#: The stamp of a module that is older than its file; it equals that of no file.
OUTDATED = (-1, -1)


@dataclass(frozen=True, slots=True)
class _Import:
    """One import of a module."""

    module: weakref.ref[ModuleType]
    #: The module's `__spec__`, which `importlib.reload` replaces.
    spec: object
    stamp: tuple[int, int]


_imports: dict[str, _Import] = {}


@contextmanager
def note_imports() -> Iterator[None]:
    """Note the stamps of all files that the block imports."""
    before, began_ns = set(sys.modules), time.time_ns()
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            module = sys.modules[name]
            file = getattr(module, "__file__", None)
            if isinstance(module, ModuleType) and isinstance(file, str):
                found = stamp(file)
                if found[0] < began_ns:  # otherwise it may have changed after it was read
                    note(module, found)


def note(module: ModuleType, found: tuple[int, int]) -> None:
    """Note that a module was imported when its file had this stamp."""
    spec = getattr(module, "__spec__", None)
    _imports[module.__name__] = _Import(weakref.ref(module), spec, found)


def stamp_of(module: ModuleType) -> tuple[int, int] | None:
    """The stamp of a module's file at its import; None where unknown, as after a reload."""
    known = _imports.get(module.__name__)
    if known is None or known.module() is not module:
        return None
    return known.stamp if known.spec is getattr(module, "__spec__", None) else None
