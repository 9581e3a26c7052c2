"""What the nodes of a Ray cluster offer: how many workers of a kind they hold, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.pools.ray_cluster import ray

_NEEDS: dict[str, dict[str, float]] = {
    "cuda": {"num_cpus": 1, "num_gpus": 1},
    "hip": {"num_cpus": 1, "num_gpus": 1},
    "simulated": {"num_cpus": 0},
}


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: its address, what it was started with, and Ray's id of it."""

    address: str
    name: str
    node_id: str
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0


def alive() -> list[Node]:
    """The living nodes, in an order that does not change from one look to the next."""
    return sorted(map(_node, (facts for facts in ray.nodes() if facts["Alive"])), key=_order)


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


def needs(kind: str) -> dict[str, float]:
    """What Ray must have free for one runner of a kind; a device that Ray knows is taken whole."""
    return dict(_NEEDS.get(kind, {"num_cpus": 1}))


def count(kind: str, nodes: Sequence[Node]) -> int:
    """Devices of a kind: Ray's GPUs, one simulated, else the processors of each node as one."""
    if kind in ("cuda", "hip"):
        return sum(node.gpus for node in nodes)
    return 1 if kind == "simulated" else sum(node.cpus > 0 for node in nodes)


def builder_cpus(cpus: int, runners: int) -> int:
    """Processors a builder asks Ray for: one, or none where the runners leave none."""
    return 1 if cpus > runners else 0


def home(nodes: Sequence[Node], taken: Iterable[str]) -> Node | None:
    """Where the next runner goes that needs no device of Ray's: where the fewest are.

    taken: the ids of the nodes of those that are there already.
    """
    there = Counter(taken)
    candidates = [node for node in nodes if node.cpus > 0]
    return min(candidates, key=lambda node: there[node.node_id], default=None)


def on(node: Node) -> Any:
    """Ray's word for: on this node or not at all.

    Its soft form is no order: Ray 2.60 puts an actor that asks for no resources anywhere then.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
