"""The devices of a cluster's nodes, determined by a task on each node."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.records import Device
from workers import backend_kinds
from workers.device import find_devices
from workers.pools import ray_nodes
from workers.pools.ray_cluster import connect, ray
from workers.pools.ray_nodes import Node

_ANSWER_TIMEOUT_S = 60.0


def survey(
    address: str | None, timeout_s: float, kinds: Sequence[str]
) -> list[tuple[Node, list[Device] | None]]:
    """The living nodes, each with the devices that runners could own; None if it does not answer.

    address, timeout_s: as for `connect`. Raises TunerError if no cluster answers.
    """
    cluster = connect(address, timeout_s, 1)
    try:
        nodes = ray_nodes.alive()
        calls = [_start_survey(node, tuple(kinds), cluster.runtime_env) for node in nodes]
        ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_TIMEOUT_S)
        return [(node, _devices(call)) for node, call in zip(nodes, calls, strict=True)]
    finally:
        cluster.leave()


def _start_survey(
    node: Node, kinds: tuple[str, ...], runtime_env: dict[str, dict[str, str]]
) -> ray.ObjectRef:
    # By default Ray hides the GPUs from tasks that request none.
    variables = {**runtime_env.get("env_vars", {}), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    task = ray.remote(_find_devices).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=ray_nodes.on(node),
        runtime_env={**runtime_env, "env_vars": variables},
    )
    return task.remote(kinds, node)


def _find_devices(kinds: tuple[str, ...], node: Node) -> list[Device]:
    """Runs on the node: its devices, as far as Ray may use them."""
    # A plug-in that the driver has may be missing on this node.
    here = [kind for kind in kinds if kind in backend_kinds.names()]
    counts = {kind: backend_kinds.spec(kind).ray_count([node]) for kind in here}
    return [device for kind in here for device in find_devices(kind)[: counts[kind]]]


def _devices(call: ray.ObjectRef) -> list[Device] | None:
    try:
        devices: list[Device] = ray.get(call, timeout=0)
    except ray.exceptions.RayError:
        return None
    return devices
