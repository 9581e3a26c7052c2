"""Builders and runners: they compile, verify and measure variants in supervised processes.

Names are loaded where they are used, so that importing this package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.build.process_builder import ProcessBuilder, WorkerLost
    from workers.measure.device_runner import DeviceRunner
    from workers.pools import create as create_pool
    from workers.supervision.supervised_child import (
        ChildDied,
        ChildError,
        ChildTimeout,
        SupervisedChild,
    )

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
    "ChildDied": "workers.supervision.supervised_child:ChildDied",
    "ChildError": "workers.supervision.supervised_child:ChildError",
    "ChildTimeout": "workers.supervision.supervised_child:ChildTimeout",
    "DeviceRunner": "workers.measure.device_runner:DeviceRunner",
    "ProcessBuilder": "workers.build.process_builder:ProcessBuilder",
    "SupervisedChild": "workers.supervision.supervised_child:SupervisedChild",
    "WorkerLost": "workers.build.process_builder:WorkerLost",
    "create_pool": "workers.pools:create",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)
