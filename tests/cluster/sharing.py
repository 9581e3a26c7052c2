"""A program with a pool that reserves all processors of a cluster, and one that reserves nothing.

Argument: address of the cluster. It prints one JSON line about the second pool.
"""

from __future__ import annotations

import json
import sys

import ray

from search_spaces.records import Device, Workload
from workers.job_records import BuildJob, KernelRef, PoolEvent, PoolSpec, WorkerReady
from workers.pools.ray_pool import RayPool

_FIRST = PoolSpec(kind="ray", runners={"cpu": None}, address=sys.argv[1])
_SECOND = PoolSpec(
    kind="ray",
    runners={"cuda": None, "cpu": None},
    builders=1,
    address=sys.argv[1],
    reserve=False,
    priority=1,
)
_JOB = BuildJob(
    "1", KernelRef("recorded:none"), Workload(()), {}, Device("simulated", "nothing", "simulated")
)


def await_runners(pool: RayPool, answers: int = 0) -> list[PoolEvent]:
    """The events until all CPU runners have started and this number of jobs is answered."""
    events: list[PoolEvent] = []
    expected = {name for name in pool.actors if name.startswith("cpu")}
    while True:
        events += pool.poll(0.2)
        ready = {each.worker.worker_id for each in events if isinstance(each, WorkerReady)}
        if expected <= ready and sum(hasattr(each, "job_id") for each in events) >= answers:
            return events


def main() -> None:
    first, second = RayPool(_FIRST), RayPool(_SECOND)
    first.start()
    await_runners(first)
    while ray.available_resources().get("CPU", 0):
        first.poll(0.2)
    second.start()
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    homes = {each.name: each.home for each in second._states if each.home is not None}
    second.submit_build(_JOB)
    events = await_runners(second, answers=1)
    print(
        json.dumps(
            {
                "homes": {name: [names[node], gpu] for name, (node, gpu) in homes.items()},
                "answers": [each.job_id for each in events if hasattr(each, "job_id")],
                "gpus": ray.available_resources().get("GPU", 0),
            }
        ),
        flush=True,
    )
    for pool in (second, first):
        pool.close(kill=True)


main()
