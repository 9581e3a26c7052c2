"""Call a function after the import of certain modules, without importing them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

#: Receives a module that was imported just now, and its name.
After: TypeAlias = Callable[[str, ModuleType], None]


class ImportWatch(MetaPathFinder):
    """Calls `after` for each module of `names` that is imported from now on, also again."""

    def __init__(self, after: After, meanwhile: Callable[[], None]) -> None:
        self.names: frozenset[str] = frozenset()
        self._after = after
        #: Called when any module is looked for.
        self._meanwhile = meanwhile

    def watch(self, names: frozenset[str]) -> None:
        """Watch these modules and no others."""
        self.names = names
        if names and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        elif not names and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec with a loader that calls `after`."""
        self._meanwhile()
        if name not in self.names:
            return None
        for finder in list(sys.meta_path):
            if isinstance(finder, ImportWatch) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, name, self._after)
                return spec
        return None


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call a function once, after the import of a module that is not imported yet."""

    def act(_: str, module: ModuleType) -> None:
        watch.watch(frozenset())
        action()

    watch = ImportWatch(act, lambda: None)
    watch.watch(frozenset({name}))


class _Loader(Loader):
    """A module's own loader, and a call after it. The module keeps its own loader."""

    def __init__(self, own: Any, name: str, after: After) -> None:
        self._own, self._name, self._after = own, name, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        # A module may replace itself while it is imported.
        self._after(self._name, sys.modules.get(self._name, module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
