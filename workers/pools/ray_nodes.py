"""The nodes of a Ray cluster: their resources, and where workers of a kind go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.pools.ray_cluster import ray


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


def home(nodes: Sequence[Node], taken: Iterable[str]) -> Node | None:
    """The node for the next runner without a device that Ray knows: the one with the fewest.

    taken: the node of each such runner, by id. None if no node has CPUs.
    """
    runners = Counter(taken)
    candidates = [node for node in nodes if node.cpus > 0]
    return min(candidates, key=lambda node: runners[node.node_id], default=None)


def on(node: Node) -> Any:
    """Ray's scheduling strategy for this node and no other.

    The soft form does not suffice: with it Ray 2.60 places actors without resources anywhere.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
