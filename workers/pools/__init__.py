"""Pools by name: where builders and runners live."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from search_spaces.errors import TunerError
from search_spaces.registry import refuse_nested
from workers.records import PoolSpec
from workers.roles import Pool
from workers.supervision.fork_server import IN_WORKER

__all__ = ["create", "names"]

_POOLS = {
    "local": "workers.pools.local:LocalPool",
    "ray": "workers.pools.ray_pool:RayPool",
    "virtual": "workers.pools.virtual:VirtualPool",
}
_GROUP = "tuner.pools"


def names() -> tuple[str, ...]:
    """All known pools: the built-in ones and those of entry points `tuner.pools`."""
    return tuple(sorted({*_POOLS, *(entry.name for entry in entry_points(group=_GROUP))}))


def create(spec: PoolSpec) -> Pool:
    """A pool of the kind the spec names, not yet started.

    Raises TunerError for an unknown kind, and where a kernel's import or a worker asks for a pool:
    its workers would ask for one as well.
    """
    refuse_nested("a pool of workers")
    if IN_WORKER in os.environ:
        raise TunerError(
            "a worker process starts a pool of workers",
            'put what a kernel\'s file or module starts under `if __name__ == "__main__":`',
        )
    return _find(spec.kind)(spec)


def _find(kind: str) -> Callable[[PoolSpec], Pool]:
    if kind in _POOLS:
        module, _, attribute = _POOLS[kind].partition(":")
        return cast("type[Pool]", getattr(importlib.import_module(module), attribute))
    for entry in entry_points(group=_GROUP, name=kind):
        return cast("type[Pool]", entry.load())
    near = difflib.get_close_matches(kind, names(), n=1)
    raise TunerError(
        f"there is no pool `{kind}`",
        hint=f"did you mean `{near[0]}`?" if near else f"known: {', '.join(names())}",
    )
