"""Actions that wait for the import of a library, so that a process without it does not load it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def once_imported(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` now if the module is imported, else as soon as code in the block imports it."""
    if name in sys.modules:
        action()
        yield
        return
    finder = _LateFinder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _LateFinder:
    """Finds one module as all other finders do; its import then ends with a call of `action`."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action

    def remove(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        # A second finder of this kind would find by this one, and this one by it.
        self.remove()
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:  # the block is still open
                self._action()

        loader.exec_module = exec_module
