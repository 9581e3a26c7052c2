"""Which devices the nodes of a cluster have, asked on the nodes themselves."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.records import Device
from workers.device import found
from workers.pools import ray_nodes
from workers.pools.ray_cluster import connect, ray
from workers.pools.ray_nodes import Node

_ANSWER_S = 60.0


def survey(
    address: str | None, timeout_s: float, kinds: Sequence[str]
) -> list[tuple[Node, list[Device] | None]]:
    """The living nodes and the devices on each that runners could own; None: it did not answer.

    address and timeout_s are those of `connect`. Raises TunerError when no cluster answers.
    """
    cluster = connect(address, timeout_s, 1)
    try:
        nodes = ray_nodes.alive()
        calls = [_ask(node, tuple(kinds), cluster.runtime_env) for node in nodes]
        ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_S)
        return [(node, _answer(call)) for node, call in zip(nodes, calls, strict=True)]
    finally:
        cluster.leave()


def _ask(
    node: Node, kinds: tuple[str, ...], runtime_env: dict[str, dict[str, str]]
) -> ray.ObjectRef:
    # Ray hides the GPUs from whoever has asked for none, unless told otherwise.
    seeing = {**runtime_env.get("env_vars", {}), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    task = ray.remote(_look).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=ray_nodes.on(node),
        runtime_env={**runtime_env, "env_vars": seeing},
    )
    return task.remote(kinds, node)


def _look(kinds: tuple[str, ...], node: Node) -> list[Device]:
    """Runs on the node: what is there and was given to Ray."""
    given = {"cuda": node.gpus, "hip": node.gpus, "cpu": min(1, node.cpus)}
    return [device for kind in kinds for device in found(kind)[: given.get(kind)]]


def _answer(call: ray.ObjectRef) -> list[Device] | None:
    try:
        devices: list[Device] = ray.get(call, timeout=0)
    except ray.exceptions.RayError:
        return None
    return devices
