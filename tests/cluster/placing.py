"""A program that runs a pool on a cluster and prints the node of each worker.

Arguments: address and dashboard of the cluster. It prints JSON lines, the second
placement after a line of input.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray
from ray.util.state import list_actors

from search_spaces.errors import TunerError
from search_spaces.records import Device, Workload
from workers.job_records import BuildJob, KernelRef, PoolSpec, WorkerReady
from workers.pools.ray_pool import RayPool

_OPEN = PoolSpec(
    kind="ray", runners={"cuda": None, "cpu": None, "simulated": 2}, address=sys.argv[1]
)
_SMALL = PoolSpec(kind="ray", runners={}, builders=1, connect_timeout_s=0.5)


#: The node of each worker, also of those that are given up: no GPU of these nodes can be opened.
WHERE: dict[str, str] = {}


def settled(pool: RayPool, kinds: tuple[str, ...]) -> list[str]:
    """The runners of these kinds, once all of them are ready."""
    ready: set[str] = set()
    while True:
        for event in pool.poll(0.2):
            if isinstance(event, WorkerReady):
                ready.add(event.worker.worker_id)
        found = actors(pool)
        WHERE.update({name: actor["node"] for name, actor in found.items() if actor["node"]})
        expected = {name for name in pool.actors if name.startswith(kinds)}
        if ready >= expected and all(actor["state"] == "ALIVE" for actor in found.values()):
            return sorted(ready)


def actors(pool: RayPool) -> dict[str, dict[str, str]]:
    """State and node of every builder and runner."""
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    ids = {actor._actor_id.hex(): name for name, actor in pool.actors.items()}
    return {
        ids[found.actor_id]: {"state": found.state, "node": names.get(found.node_id or "", "")}
        for found in list_actors(sys.argv[2], limit=1000, raise_on_missing_output=False)
        if found.actor_id in ids
    }


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def places(pool: RayPool, ready: list[str]) -> None:
    say(where=WHERE, ready=ready, builders=pool.builders, runners=pool.runners)


@ray.remote(num_cpus=1)
class Holder:
    """Has a processor."""

    def there(self) -> None: ...


def starved(first: RayPool) -> None:
    """A pool whose only builder finds no free processor."""
    # Runners that are given up have left theirs.
    taken = sum(not name.startswith("simulated") for name in first.actors)
    holders = [Holder.remote() for _ in range(int(ray.cluster_resources()["CPU"]) - taken)]
    ray.get([holder.there.remote() for holder in holders])
    pool = RayPool(_SMALL)
    pool.start()
    device = Device("simulated", "nothing", "simulated")
    pool.submit_build(BuildJob("1", KernelRef("recorded:none"), Workload(()), {}, device))
    try:
        while True:
            pool.poll(0.2)
    except TunerError as error:
        say(message=error.message, hint=error.hint)
    finally:
        pool.close(kill=True)
        for holder in holders:
            ray.kill(holder)


def main() -> None:
    pool = RayPool(_OPEN)
    pool.start()
    ready = settled(pool, ("cpu", "simulated"))
    places(pool, ready)
    starved(pool)
    sys.stdin.readline()
    while "cpu-2" not in pool.actors:
        pool.poll(0.2)
        time.sleep(0.1)
    places(pool, settled(pool, ("cpu-2",)))
    pool.close(kill=True)


main()
