from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import ray
from pool_contract import Farm, PoolContract, PoolFaultContract, child_of, kinds, owner_of, spec
from processes import alive, below, kill, named, wait_until

from workers.job_records import JobLost, Measured, PoolEvent, WorkerGone
from workers.pools import create, ray_nodes, ray_pool

pytestmark = [pytest.mark.ray]


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """One Ray for all tests of this file."""
    others = set(below(os.getpid()))
    pool = create(spec("ray"))
    made = Farm.start(pool, tmp_path_factory.mktemp("ray"))
    folder = pool._cluster.local.folder
    assert folder.is_dir()
    yield made
    before = set(below(os.getpid())) - others
    assert pool.begin_kill()
    pool.close()
    assert not folder.exists()
    wait_until(lambda: not any(map(alive, before)))


class TestRayPool(PoolContract):
    def test_runners_of_a_local_ray_are_described_as_they_will_be(self, farm: Farm):
        described = farm.pool.describe_workers()
        assert [info.worker_id for info in described] == ["simulated-0", "simulated-1"]
        for info in described:
            _, ready = ray.get(farm.pool.actors[info.worker_id].ready.remote())
            assert replace(ready, calibration=None) == info

    def test_killing_a_runners_actor_loses_the_job_and_brings_the_worker_back(self, farm: Farm):
        hanging = farm.measure_job("m", farm.config("hang"), slow=True)
        farm.pool.submit_measure("simulated-0", hanging)
        wait_until(lambda: len(named(os.getpid(), "simulated-0")) == 2)
        owner = owner_of("simulated-0")
        orphans = below(owner)
        assert {*named(os.getpid(), "simulated-0")} <= {*orphans}
        kill(owner)
        event, others = farm.answer("m")
        assert isinstance(event, JobLost)
        assert event.reason.startswith(("the worker died: ", "the worker cannot be reached: "))
        farm.ready["simulated-0"] = any(not isinstance(e, WorkerGone) for e in others)
        farm.until(lambda: farm.ready["simulated-0"])
        wait_until(lambda: not any(map(alive, orphans)))
        farm.pool.submit_measure("simulated-0", farm.measure_job("again", farm.config("")))
        event, _ = farm.answer("again")
        assert isinstance(event, Measured)


@pytest.mark.full
class TestRayPoolFaults(PoolFaultContract):
    def test_calls_of_a_dead_node_fail_even_if_ray_does_not_answer(self, farm: Farm, monkeypatch):
        (cold,) = (each for each in farm.pool._states if each.name == "builder-0")
        farm.until(lambda: cold.warm)
        frozen = [owner_of("simulated-0"), owner_of("builder-0")]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        farm.pool.submit_measure("simulated-0", farm.measure_job("d", farm.config("")))
        cold.warm = False  # so that it is sent another step
        monkeypatch.setattr(ray_nodes, "alive", list)
        monkeypatch.setattr(ray_pool, "_SURVEY_S", 1.0)
        try:
            event, others = farm.answer("d")
            farm.until(lambda: not cold.ready)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        assert isinstance(event, JobLost)
        assert event.reason == "its node has left the cluster"
        farm.ready["simulated-0"] = any(not isinstance(e, WorkerGone) for e in others)
        monkeypatch.undo()
        farm.until(lambda: farm.ready["simulated-0"] and cold.warm)
        farm.pool.submit_measure("simulated-0", farm.measure_job("back", farm.config("")))
        event, _ = farm.answer("back")
        assert isinstance(event, Measured)

    def test_killing_the_builders_actor_loses_their_builds_and_no_builder(self, farm: Farm):
        farm.until(lambda: farm.pool.warm)
        owner = owner_of("builder-0")
        assert owner_of("builder-1") == owner
        for name in ("builder-0", "builder-1"):
            os.kill(child_of(name), signal.SIGSTOP)  # so that it does not end its build
        assert self._built(farm, "b", lambda: kill(owner)) == Counter(JobLost=2)
        assert farm.pool.builders == 2
        farm.until(lambda: farm.pool.warm)
        assert self._built(farm, "again", lambda: None) == Counter(Built=2)
        farm.until(lambda: len(named(os.getpid(), "builder-0")) == 2)

    def _built(self, farm: Farm, prefix: str, meanwhile: Callable[[], None]) -> Counter[str]:
        """The kinds of the answers to two builds."""
        for index in range(2):
            farm.pool.submit_build(farm.build_job(f"{prefix}{index}", farm.config("")))
        meanwhile()
        answers: list[PoolEvent] = []
        while len(answers) < 2:
            answers += [event for event in farm.pool.poll(5.0) if hasattr(event, "job_id")]
        return kinds(answers)
