"""Modules of kernels that ask for their device when they are imported: one set of them per device.

A module that asked nothing serves all devices. One that did, and all that was imported beside it,
is imported again for each further device, and is in `sys.modules` while that device's is the world.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType

from search_spaces import target
from search_spaces.records import Device

#: What no kernel's module is: these do not depend on a device, or only where it is used.
_SHARED = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "sympy", "mpmath", "optuna"),
    *("search_spaces", "workers", "results_db", "reports", "tuner", "ray", "sqlalchemy", "pynvml"),
}


@dataclass(slots=True)
class _World:
    """modules: those of kernels, by name. dependent: whether anything asked for the device."""

    modules: dict[str, ModuleType] = field(default_factory=dict)
    dependent: bool = False


_worlds: dict[str, _World] = {}


@contextmanager
def world(device: Device | None) -> Iterator[None]:
    """Import and use kernels' modules as on `device`, which is answered for; None: on this machine.

    Not for several threads at once.
    """
    if device is None:
        yield
        return
    key = repr(target.properties_of(device)) if target.is_gpu(device) else ""
    entered = _worlds[key] = _entered(key)
    before, questions = set(sys.modules), target.asked()
    try:
        with target.answering(device):
            yield
    finally:
        found = {name: sys.modules[name] for name in sys.modules.keys() - before}
        entered.modules.update(
            {n: m for n, m in found.items() if n.partition(".")[0] not in _SHARED}
        )
        if target.asked() > questions:
            entered.dependent = True
            for other in [k for k, one in _worlds.items() if one is entered and k != key]:
                del _worlds[other]
        for absent in _others(entered):
            for name, module in absent.items():
                sys.modules.setdefault(name, module)


def _entered(key: str) -> _World:
    independent = (one for one in _worlds.values() if not one.dependent)
    chosen = _worlds.get(key) or next(independent, None) or _World()
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


def _others(chosen: _World) -> Iterator[Mapping[str, ModuleType]]:
    return (one.modules for one in _worlds.values() if one is not chosen)
