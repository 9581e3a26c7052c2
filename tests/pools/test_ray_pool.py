from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pool_contract import Farm, PoolContract, child_of, owner_of, spec
from processes import alive, below, kill, named, title, wait_until

from search_spaces.errors import TunerError
from workers.job_records import JobLost, Measured, PoolSpec, WorkerGone
from workers.pools import create, ray_nodes, ray_pool

pytestmark = [pytest.mark.ray]


@pytest.fixture(scope="class")
def farm(tmp_path_factory):
    others = set(below(os.getpid()))
    pool = create(spec("ray"))
    made = Farm.start(pool, tmp_path_factory.mktemp("ray"))
    yield made
    before = set(below(os.getpid())) - others
    pool.close()
    wait_until(lambda: not any(map(alive, before)))


class TestRayPool(PoolContract):
    def test_killing_a_runners_actor_loses_the_job_and_brings_the_worker_back(self, farm: Farm):
        hanging = farm.measure_job("m", farm.config("hang"), slow=True)
        farm.pool.submit_measure("simulated-0", hanging)
        wait_until(lambda: len(named(os.getpid(), "simulated-0")) == 3)
        orphans = named(os.getpid(), "simulated-0")
        kill(owner_of("simulated-0"))
        event, others = farm.answer("m")
        assert isinstance(event, JobLost)
        assert event.reason.startswith(("the worker died: ", "the worker cannot be reached: "))
        farm.ready["simulated-0"] = any(not isinstance(e, WorkerGone) for e in others)
        farm.until(lambda: farm.ready["simulated-0"])
        wait_until(lambda: not any(map(alive, orphans)))
        farm.pool.submit_measure("simulated-0", farm.measure_job("again", farm.config("")))
        event, _ = farm.answer("again")
        assert isinstance(event, Measured)

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

    def test_killing_a_builders_actor_loses_the_job_and_no_builder(self, farm: Farm):
        farm.until(lambda: farm.pool.warm)
        owner = owner_of("builder-0")
        os.kill(child_of("builder-0"), signal.SIGSTOP)  # so that it does not end its build
        for index in range(2):
            farm.pool.submit_build(farm.build_job(f"b{index}", farm.config("")))
        kill(owner)
        kinds = set()
        while len(kinds) < 2:
            kinds |= {type(e).__name__ for e in farm.pool.poll(5.0) if hasattr(e, "job_id")}
        assert kinds == {"Built", "JobLost"}
        assert farm.pool.builders == 2
        for index in range(2):
            farm.pool.submit_build(farm.build_job(f"again{index}", farm.config("")))
        farm.until(lambda: len(named(os.getpid(), "builder-0")) == 3)


_DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pool_contract import Farm, spec
from workers.pools import create
farm = Farm.start(create(spec("ray")), Path(sys.argv[2]))
farm.pool.submit_measure("simulated-0", farm.measure_job("m", farm.config("hang"), slow=True))
farm.pool.submit_build(farm.build_job("b", farm.config(""), slow=True))
print("up", farm.pool._cluster.local.folder, flush=True)
while True:
    farm.pool.poll(1.0)
"""


def test_a_driver_killed_outright_leaves_neither_ray_nor_children(tmp_path):
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER, here, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        up, folder = driver.stdout.readline().split()
        assert up == "up"
        assert Path(folder).is_dir()
        wait_until(lambda: len(named(driver.pid, "simulated-0")) == 3)
        # Ray's agents look for their raylet every few seconds and may take a minute to end.
        family = [pid for pid in below(driver.pid) if "agent" not in title(pid).lower()]
        driver.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, family)))
    wait_until(lambda: not Path(folder).exists())


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_refused_in_one_line(scheme):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
        pool = create(PoolSpec(kind="ray", address=address, connect_timeout_s=1.0))
        # Without a listener the connection is refused; a listener other than Ray never answers.
        for _ in range(2):
            with pytest.raises(TunerError) as caught:
                pool.start()
            assert address in caught.value.message
            assert "\n" not in caught.value.message
            assert "pool.address" in caught.value.hint
            listener.listen()
    pool.close()
