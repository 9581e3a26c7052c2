"""Builders and runners: they compile, verify and measure variants in supervised processes.

Names are loaded where they are used, so that importing this package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from workers.compiling.process_builder import ProcessBuilder
    from workers.measure.device_runner import DeviceRunner
    from workers.pools import create as create_pool
    from workers.processes.supervised_child import (
        ChildDied,
        ChildError,
        ChildTimeout,
        SupervisedChild,
    )
    from workers.processes.worker_lost import WorkerLost

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

__getattr__ = lazy_names(
    __name__,
    {
        "ChildDied": "workers.processes.supervised_child",
        "ChildError": "workers.processes.supervised_child",
        "ChildTimeout": "workers.processes.supervised_child",
        "DeviceRunner": "workers.measure.device_runner",
        "ProcessBuilder": "workers.compiling.process_builder",
        "SupervisedChild": "workers.processes.supervised_child",
        "WorkerLost": "workers.compiling.process_builder",
        "create_pool": "workers.pools:create",
    },
)
