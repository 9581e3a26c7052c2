"""Modules of kernels that query their device at import: one set of modules per device.

A module that makes no query serves all devices. A module that makes one, and all modules imported
with it, is imported again for each further device. `sys.modules` holds the set of the device whose
block is open.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from types import ModuleType
from typing import Any

from search_spaces.absent_device import fake_driver
from search_spaces.absent_device.fake_driver import once_imported
from search_spaces.records import Device

#: Packages that no set holds: they do not depend on the device at import.
_SHARED = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "sympy", "mpmath", "optuna"),
    *("search_spaces", "workers", "results_db", "reports", "tuner", "ray", "sqlalchemy", "pynvml"),
}


@dataclass(slots=True)
class _ModuleSet:
    """The modules of kernels for one device, or for all that nothing was queried of."""

    #: By import name.
    modules: dict[str, ModuleType] = field(default_factory=dict)
    #: Whether a module queried the device.
    dependent: bool = False


_sets: dict[str, _ModuleSet] = {}


@contextmanager
def modules_of(device: Device | None) -> Iterator[None]:
    """Import and use kernels' modules as on `device`; None: as on this machine.

    Not thread-safe.
    """
    if device is None:
        yield
        return
    key = _key(device)
    entered = _sets[key] = _enter(key)
    before, queries = set(sys.modules), fake_driver.query_count()
    try:
        with ExitStack() as stack:
            stack.enter_context(fake_driver.fake_device(device))
            changing = partial(_change_torch, device, stack, threading.get_ident())
            stack.enter_context(once_imported("torch", changing))
            yield
    finally:
        found = {name: sys.modules[name] for name in sys.modules.keys() - before}
        entered.modules.update(
            {n: m for n, m in found.items() if n.partition(".")[0] not in _SHARED}
        )
        if fake_driver.query_count() > queries:
            entered.dependent = True
            for other in [k for k, one in _sets.items() if one is entered and k != key]:
                del _sets[other]
        for absent in _others(entered):
            for name, module in absent.items():
                sys.modules.setdefault(name, module)


def _change_torch(device: Device, stack: ExitStack, thread: int) -> None:
    """Until the stack is closed, change what torch does with tensors and operators."""
    if threading.get_ident() != thread:  # modes of torch belong to a thread
        return
    if fake_driver.is_gpu(device):
        stack.enter_context(_made_on_meta())
    if has_several():
        stack.enter_context(_operators_kept())


def forget(names: Collection[str]) -> None:
    """Drop modules from all sets, so that the next import of them reads their files."""
    for one in _sets.values():
        for name in names:
            one.modules.pop(name, None)


def has_several() -> bool:
    """Whether modules have been imported for more than one device."""
    return len({id(one) for one in _sets.values()}) > 1


def _key(device: Device) -> str:
    """What distinguishes devices: all answers but the size of L2, which not all callers know."""
    if not fake_driver.is_gpu(device):
        return ""
    return f"{device.target} {replace(fake_driver.properties_of(device), L2_cache_size=0)}"


def _enter(key: str) -> _ModuleSet:
    independent = (one for one in _sets.values() if not one.dependent)
    chosen = _sets.get(key) or next(independent, None) or _ModuleSet()
    for others in _others(chosen):
        for name, module in others.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
    for name, module in chosen.modules.items():
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
    return chosen


def _others(chosen: _ModuleSet) -> Iterator[Mapping[str, ModuleType]]:
    return (one.modules for one in _sets.values() if one is not chosen)


@contextmanager
def _made_on_meta() -> Iterator[None]:
    """Let tensors that are made on, or moved to, a GPU that is not here have no storage."""
    from torch.overrides import TorchFunctionMode

    class Meta(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(function, "__name__", "") == "cuda":
                return args[0].to("meta")
            named = {name: _off_gpu(value) for name, value in (kwargs or {}).items()}
            return function(*map(_off_gpu, args), **named)

    mode: Any = Meta
    with mode():
        yield


def _off_gpu(value: Any) -> Any:
    is_device = isinstance(value, str) or type(value).__name__ == "device"
    return "meta" if is_device and re.fullmatch(r"cuda(:\d+)?", str(value)) else value


@contextmanager
def _operators_kept() -> Iterator[None]:
    """Let operators that modules register with torch be those of the first world.

    torch takes each registration once in a process.
    """
    library_module: Any = importlib.import_module("torch.library")
    library_class = library_module.Library
    kept = {name: getattr(library_class, name) for name in ("define", "impl", "_register_fake")}
    make = library_class.__init__

    def fragment(library: Any, namespace: str, kind: str, *rest: Any) -> None:
        make(library, namespace, "FRAGMENT" if kind == "DEF" else kind, *rest)

    library_class.__init__ = fragment
    for name, method in kept.items():
        setattr(library_class, name, _once(method))
    try:
        yield
    finally:
        library_class.__init__ = make
        for name, method in kept.items():
            setattr(library_class, name, method)


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def register(*args: Any, **kwargs: Any) -> Any:
        if method.__name__ == "impl" and _has_kernel(*args, **kwargs):
            return None
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            if not re.search(r"multiple times|already", f"{error}"):
                raise
            return args[1] if len(args) > 1 else None

    return register


def _has_kernel(
    library: Any, operator: Any, function: Any, dispatch_key: str = "", **options: Any
) -> bool:
    """Whether an operator has an implementation for the key that `Library.impl` is given."""
    name = operator if isinstance(operator, str) else operator._schema.name
    full = name if "::" in name else f"{library.ns}::{name}"
    key = dispatch_key or library.dispatch_key
    dispatcher: Any = importlib.import_module("torch")._C
    try:
        return bool(dispatcher._dispatch_has_kernel_for_dispatch_key(full, key))
    except RuntimeError:
        return False
