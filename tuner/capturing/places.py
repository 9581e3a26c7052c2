"""Where a launched object is, so that another process can import it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from search_spaces import registry
from search_spaces.errors import KernelError, TunerError


class NoPlace(Exception):
    """An object that no other process can find; the text says why in one line."""


def place_of(launched: Any) -> str:
    """`module:object`, or `path/to/file.py:object` for an object of the running script.

    launched: a kernel under any decorators. Raises `NoPlace`.
    """
    base = base_of(launched)
    name = getattr(base, "__qualname__", getattr(base, "__name__", "it"))
    for module, attribute in _holders(launched, base):
        if module.__name__ not in ("__main__", "__mp_main__") and not _is_of_a_file(module):
            return f"{module.__name__}:{attribute}"
        spec = getattr(module, "__spec__", None)
        if spec is not None and module.__name__ == "__main__" and spec.name != "__main__":
            return f"{spec.name}:{attribute}"
        file = getattr(module, "__file__", None)
        if file and Path(file).is_file():
            return f"{Path(file).resolve()}:{attribute}"
    if "<locals>" in name:
        raise NoPlace(f"{name} is made inside a function, so that no other process can import it")
    raise NoPlace(f"no module holds {name}, so that no other process can import it")


def load_place(place: str) -> Any:
    """The object at a place. Raises `KernelError` in one line."""
    where, _, attribute = place.rpartition(":")
    found: Any = _module(where)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise KernelError(
            f"captured kernel {place}: {where} has no {attribute} any more",
            "capture the call again",
        )
    return found


def base_of(launched: Any) -> Any:
    """The Python function below all decorators."""
    while hasattr(launched, "fn"):
        launched = launched.fn
    return launched


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except TunerError:
            raise
        except Exception as error:
            raise KernelError(
                f"captured kernel: importing {where} fails with {type(error).__name__}: {error}",
                "install the package that it belongs to, or add its folder to the import path",
            ) from error
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if main is not None and file and os.path.realpath(file) == os.path.realpath(where):
        return main
    return registry.import_file(where)


def _is_of_a_file(module: ModuleType) -> bool:
    """Whether a module was imported from a file that was named, under a name of ours."""
    return module.__name__.startswith("tuner_kernels_")


def _holders(launched: Any, base: Any) -> Iterator[tuple[ModuleType, str]]:
    """Modules and names that hold the object; first where its function is defined."""
    home = sys.modules.get(getattr(base, "__module__", ""))
    qualified = getattr(base, "__qualname__", "")
    if home is not None:
        found: Any = home
        for part in qualified.split("."):
            found = getattr(found, part, None)
        if found is launched:
            yield home, qualified
    for module in [home, *list(sys.modules.values())]:
        if not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if value is launched:
                yield module, attribute
