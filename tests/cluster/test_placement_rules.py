"""Placement as pure functions of the nodes' resources, and paths on other nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from workers import backend_kinds
from workers.job_records import KernelRef, PoolSpec
from workers.pools import ray_nodes, ray_pool
from workers.pools.ray_actors import MovedFolder
from workers.pools.ray_nodes import Node
from workers.pools.ray_pool import RayPool
from workers.pools.worker_slots import PoolPlan

_nodes = st.lists(st.tuples(st.integers(0, 64), st.integers(0, 8)), min_size=1, max_size=12).map(
    lambda sizes: [
        Node("10.0.0.1", "", f"{index}", cpus, gpus, cpus << 32)
        for index, (cpus, gpus) in enumerate(sizes)
    ]
)


@given(_nodes)
def test_there_is_a_runner_for_every_gpu_and_for_every_node_with_processors(nodes):
    plan = PoolPlan(PoolSpec(runners={"cuda": None, "cpu": None, "simulated": 3}))
    slots = list(plan.slots(lambda kind: backend_kinds.spec(kind).ray_count(nodes)))
    kinds = Counter(slot.kind for slot in slots)
    assert kinds["cuda"] == sum(node.gpus for node in nodes)
    assert kinds["cpu"] == sum(node.cpus > 0 for node in nodes)
    assert kinds["simulated"] == 3
    assert len({slot.worker_id for slot in slots}) == len(slots)


@given(_nodes, st.integers(0, 30), st.booleans())
def test_runners_are_spread_evenly_over_nodes_or_gpus_that_are_not_reserved(nodes, count, gpus):
    taken: list[tuple[str, int]] = []
    for _ in range(count):
        place = ray_nodes.home(nodes, taken, gpus=gpus)
        if place is None:
            break
        taken.append(place)
    able = {(n.node_id, at) for n in nodes for at in range(n.gpus if gpus else n.cpus > 0)}
    assert len(taken) == (count if able else 0)
    counts = Counter(taken)
    assert set(counts) <= able
    assert not able or max(counts.values(), default=0) - min(counts[n] for n in able) <= 1


@given(_nodes, st.integers(0, 40))
def test_builders_and_runners_never_request_more_processors_than_exist(nodes, runners):
    cpus = sum(node.cpus for node in nodes)
    memory_bytes = sum(node.memory_bytes for node in nodes)
    builders = PoolPlan(PoolSpec()).builders(cpus, memory_bytes, runners)
    assert builders >= 1
    requested = builders * ray_nodes.builder_cpus(cpus, runners)
    assert requested + runners <= max(cpus, runners)


def test_paths_inside_a_shipped_folder_follow_it(tmp_path: Path):
    moved = MovedFolder(f"{tmp_path / 'gone'}", "/here")
    ref = KernelRef(f"{tmp_path / 'gone'}/k.py:K", (f"{tmp_path / 'gone'}/sub", f"{tmp_path}"))
    assert moved.kernel(ref) == KernelRef("/here/k.py:K", ("/here/sub", f"{tmp_path}"))
    recorded = KernelRef(f"recorded:{tmp_path / 'gone'}/space.json")
    assert moved.kernel(recorded).spec == "recorded:/here/space.json"
    for spec in ("softmax", "package.module:K", "k.py:K", f"{tmp_path / 'gone'}-other/k.py:K"):
        assert moved.kernel(KernelRef(spec)).spec == spec


def test_paths_stay_if_the_drivers_folder_exists(tmp_path: Path):
    ref = KernelRef(f"{tmp_path}/k.py:K", (f"{tmp_path}",))
    assert MovedFolder(f"{tmp_path}", "/here").kernel(ref) == ref


def test_a_node_that_joins_gets_workers_of_the_kinds_whose_count_is_open(monkeypatch):
    """With nodes that Ray would list; test_clusters.py starts them."""
    nodes = [Node("10.0.0.1", "plain", "a", 3, 0, 3 << 32)]
    monkeypatch.setattr(ray_nodes, "alive", lambda: nodes)
    connection = SimpleNamespace(owned=False, runtime_env={})
    monkeypatch.setattr(ray_pool, "connect", lambda *_: connection)
    # All of them have the driver's packages.
    monkeypatch.setattr(ray_pool.Admission, "admit", lambda _, found, timeout_s=0.0: list(found))
    runners = {"cpu": None, "simulated": 2}
    pool = RayPool(PoolSpec(kind="ray", runners=runners, address="10.0.0.1:6379"))
    made: list[str] = []
    monkeypatch.setattr(pool, "_create_actor", lambda state: made.append(state.name))
    pool.start()
    first = set(made)
    assert {"cpu-0", "simulated-0", "simulated-1", "builder-0"} <= first
    made.clear()
    nodes.append(Node("10.0.0.2", "late", "b", 3, 0, 3 << 32))
    pool._survey_at = 0.0
    pool._survey_nodes()
    assert "cpu-1" in made
    assert {name.partition("-")[0] for name in made} == {"cpu", "builder"}
    assert not first & set(made)
