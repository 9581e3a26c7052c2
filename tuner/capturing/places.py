"""Where a launched object is, so that another process can import it."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from search_spaces import registry
from search_spaces.errors import KernelError, TunerError
from search_spaces.source_positions import one_line

#: An `if` or `else` of a module, up to the definition of a name inside it.
_CONDITIONAL = r"^((?:if|elif|else)\b.*:)(?:\n(?:[ \t].*)?)*?\n[ \t]+(?:def {name}\(|{name}\s*=)"


class NoPlace(Exception):
    """An object that no other process can find; the text says why in one line."""


def place_of(launched: Any) -> str:
    """`module:object`, or `path/to/file.py:object` for an object of the running script.

    launched: a kernel under any decorators, or below some: `module:object.fn`. Raises `NoPlace`.
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
        raise _missing(where, attribute)
    return found


def _missing(where: str, attribute: str) -> KernelError:
    """The error for a module without an object, which it may define where it finds a GPU."""
    import torch

    name, text, hint = attribute.partition(".")[0], "", "capture the call again"
    with suppress(OSError, TypeError):
        text = inspect.getsource(_module(where))
    found = re.search(_CONDITIONAL.format(name=re.escape(name)), text, re.MULTILINE)
    why = f"{where} has no {attribute} any more"
    if found and not torch.cuda.is_available():
        why = f"{where} defines {name} under `{found[1]}`, and no GPU is visible here"
        hint = "capture and tune it on a machine with a GPU"
    return KernelError(f"captured kernel {where}:{attribute}: {why}", hint)


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
                f"captured kernel: importing {where} fails with {one_line(error)}",
                "install the package that it belongs to, or add its folder to the import path"
                if isinstance(error, ImportError)
                else "capture and tune it where the import works, as on a machine with a GPU",
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
    if home is None:
        return
    for attribute, value in list(vars(home).items()):
        while (value := getattr(value, "__dict__", {}).get("fn")) is not None:
            attribute += ".fn"
            if value is launched:
                yield home, attribute
