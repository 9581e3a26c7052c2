"""Pools by name: where builders and runners live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from search_spaces.errors import TunerError
from search_spaces.plugins import PluginGroup
from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from workers.job_records import PoolSpec
    from workers.processes.pool_servers import end_prestarted, prestart
    from workers.roles import Pool

__all__ = ["create", "end_prestarted", "is_here", "names", "prestart"]

POOLS = PluginGroup(
    "tuner.pools",
    "pool",
    {
        "local": "workers.pools.local:LocalPool",
        "ray": "workers.pools.ray_pool:RayPool",
    },
)

# A check of the settings needs the names alone.
__getattr__ = lazy_names(
    __name__,
    {
        "workers.processes.pool_servers": ("end_prestarted", "prestart"),
    },
)


def names() -> tuple[str, ...]:
    """All known pools: the built-in ones and those of entry points `tuner.pools`."""
    return POOLS.names()


def is_here(kind: str, address: str | None) -> bool:
    """Whether a pool of this kind would start all of its processes on this machine.

    address: that of a cluster. A pool of kind `ray` starts a local Ray where there is no other.
    """
    if kind != "ray":
        return kind == "local"
    connected = getattr(sys.modules.get("ray"), "is_initialized", bool)()
    return (address or os.environ.get("RAY_ADDRESS") or "local") == "local" and not connected


def create(spec: PoolSpec) -> Pool:
    """A pool of the kind the spec names, not yet started.

    Raises TunerError for an unknown kind, and where a kernel's import or a worker asks for a pool:
    its workers would ask for one as well.
    """
    from search_spaces.registry import refuse_nested
    from workers.processes.fork_server import IN_WORKER

    refuse_nested("a pool of workers")
    if IN_WORKER in os.environ:
        raise TunerError(
            "a worker process starts a pool of workers",
            'put what a kernel\'s file or module starts under `if __name__ == "__main__":`',
        )
    make = cast("Callable[[PoolSpec], Pool]", POOLS.load(spec.kind))
    return make(spec)
