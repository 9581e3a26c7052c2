"""The nodes of a Ray cluster: their resources, and where workers of a kind go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from search_spaces.records import Device
from workers import backend_kinds
from workers.device import find_devices
from workers.pools.ray_cluster import connect, ray

#: Ray's id of a node, and the number of a GPU there; 0 for runners of other kinds.
Home: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Node:
    """A living node."""

    address: str
    name: str
    #: Ray's id of it.
    node_id: str
    #: The resources that it was started with.
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0


def alive() -> list[Node]:
    """The living nodes, always in the same order."""
    return sorted(map(_node, (facts for facts in ray.nodes() if facts["Alive"])), key=_order)


def own_id() -> str:
    """Ray's id of the node of this actor."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


def _node(facts: Mapping[str, Any]) -> Node:
    has = facts["Resources"]
    return Node(
        address=facts["NodeManagerAddress"],
        name=facts["NodeName"],
        node_id=facts["NodeID"],
        cpus=int(has.get("CPU", 0)),
        gpus=int(has.get("GPU", 0)),
        memory_bytes=int(has.get("memory", 0)),
    )


def _order(node: Node) -> tuple[str, str, str]:
    return node.address, node.name, node.node_id


def builder_cpus(cpus: int, runners: int) -> int:
    """The CPUs that a builder requests from Ray: one, or none if the runners leave none."""
    return 1 if cpus > runners else 0


def home(nodes: Sequence[Node], taken: Iterable[Home], *, gpus: bool = False) -> Home | None:
    """The place of the next runner for which Ray reserves no device: the one with the fewest.

    taken: that of each such runner. gpus: whether it is one of a GPU; else any node with CPUs is.
    None if there is no such place.
    """
    runners = Counter(taken)
    candidates = [
        (node.node_id, number)
        for node in nodes
        for number in range(node.gpus if gpus else node.cpus > 0)
    ]
    return min(candidates, key=lambda place: runners[place], default=None)


def on(node_id: str) -> Any:
    """Ray's scheduling strategy for this node and no other.

    The soft form does not suffice: with it Ray 2.60 places actors without resources anywhere.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def show_devices(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The environment with all devices, which Ray hides from actors and tasks that request none."""
    variables = {**runtime_env.get("env_vars", {}), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return {**runtime_env, "env_vars": variables}


# -- the devices of a cluster's nodes, determined by a task on each node ---------------------------
_ANSWER_TIMEOUT_S = 60.0


def survey(
    address: str | None, timeout_s: float, kinds: Sequence[str]
) -> list[tuple[Node, list[Device] | None]]:
    """The living nodes, each with the devices that runners could own; None if it does not answer.

    address, timeout_s: as for `connect`. Raises TunerError if no cluster answers.
    """
    cluster = connect(address, timeout_s, 1)
    try:
        nodes = alive()
        calls = [_start_survey(node, tuple(kinds), cluster.runtime_env) for node in nodes]
        ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_TIMEOUT_S)
        return [(node, _devices(call)) for node, call in zip(nodes, calls, strict=True)]
    finally:
        cluster.leave()


def _start_survey(
    node: Node, kinds: tuple[str, ...], runtime_env: dict[str, dict[str, str]]
) -> ray.ObjectRef:
    task = ray.remote(_find_devices).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=on(node.node_id),
        runtime_env=show_devices(runtime_env),
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
