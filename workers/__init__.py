"""Builders and runners: they compile, verify and measure variants in supervised processes.

Names are loaded where they are used, so that importing this package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.builder import ProcessBuilder, WorkerLost
    from workers.child import ChildDied, ChildError, ChildTimeout, SupervisedChild
    from workers.pools import create as create_pool
    from workers.runner import DeviceRunner

__all__ = [
    "ChildDied",
    "ChildError",
    "ChildTimeout",
    "DeviceRunner",
    "ProcessBuilder",
    "SupervisedChild",
    "WorkerLost",
    "create_pool",
]

_HOMES = {
    "ChildDied": "workers.child:ChildDied",
    "ChildError": "workers.child:ChildError",
    "ChildTimeout": "workers.child:ChildTimeout",
    "DeviceRunner": "workers.runner:DeviceRunner",
    "ProcessBuilder": "workers.builder:ProcessBuilder",
    "SupervisedChild": "workers.child:SupervisedChild",
    "WorkerLost": "workers.builder:WorkerLost",
    "create_pool": "workers.pools:create",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)
