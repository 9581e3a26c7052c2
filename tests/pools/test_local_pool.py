from __future__ import annotations

import logging
import os
import tempfile

import pytest
from pool_contract import Farm, PoolContract, PoolFaultContract, child_of, spec
from processes import forked, named, wait_until

from search_spaces.errors import TunerError
from workers.job_records import PoolSpec, WorkerGone
from workers.pools import create, names
from workers.pools.worker_slots import PoolPlan


@pytest.fixture(scope="class")
def farm(tmp_path_factory):
    pool = create(spec("local"))
    made = Farm.start(pool, tmp_path_factory.mktemp("local"))
    yield made
    pool.close()
    for name in ("simulated-0", "simulated-1", "builder-0", "builder-1"):
        assert not named(os.getpid(), name)


class TestLocalPool(PoolContract, PoolFaultContract):
    pass


@pytest.mark.parametrize("kill", [True, False])
def test_closing_does_not_wait_for_jobs_and_leaves_nothing(tmp_path, monkeypatch, kill):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = create(spec("local"))
    farm = Farm.start(pool, tmp_path)
    pool.submit_measure("simulated-0", farm.measure_job("m", farm.config("hang"), slow=True))
    pool.submit_build(farm.build_job("b", farm.config(""), slow=True))
    wait_until(lambda: child_of("simulated-0") > 0)
    pool.close(kill=kill)
    assert not forked(os.getpid())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tuner-")]


def test_a_runner_that_never_starts_is_given_up_with_its_reason(caplog):
    caplog.set_level(logging.INFO, "workers.pools")
    wrong = PoolSpec(runners={"simulated": 1}, builders=1, options={"simulated": {"speed": 1}})
    pool = create(wrong)
    pool.start()
    gone: list[WorkerGone] = []

    def given_up() -> bool:
        gone.extend(event for event in pool.poll(0.5) if isinstance(event, WorkerGone))
        return bool(gone)

    wait_until(given_up)
    assert "speed" in gone[0].reason
    wait_until(lambda: pool.runners == 0)
    pool.close()
    for words in ("simulated-0: start 1 failed", "simulated-0: start 3 failed", gone[0].reason):
        assert words in caplog.text
    assert "simulated-0 is given up" in caplog.text


def test_pools_are_found_by_name():
    assert {"local", "ray"} <= set(names())
    with pytest.raises(TunerError, match="unknown pool 'lokal'; did you mean 'local'"):
        create(PoolSpec(kind="lokal"))


def test_builders_get_the_processors_that_runners_leave():
    plan = PoolPlan(PoolSpec())
    assert plan.builders(cpus=16, memory_bytes=2**40, runners=2) == 14
    assert plan.builders(cpus=2, memory_bytes=2**40, runners=4) == 1
    assert plan.builders(cpus=64, memory_bytes=6 * 2**30, runners=0) == 4
    assert PoolPlan(PoolSpec(builders=3)).builders(cpus=1, memory_bytes=0, runners=0) == 3


def test_builders_also_use_the_processors_that_are_timed_now_and_then():
    plan = PoolPlan(PoolSpec())
    assert plan.builders(cpus=16, memory_bytes=2**40, runners=2, timed=1) == 15
    assert plan.builders(cpus=2, memory_bytes=2**40, runners=4, timed=4) == 2
    assert plan.builders(cpus=1, memory_bytes=2**40, runners=1, timed=1) == 1
    assert plan.builders(cpus=8, memory_bytes=2**31, runners=7, timed=2) == 1
    set_by_user = PoolPlan(PoolSpec(builders=1))
    assert set_by_user.builders(cpus=8, memory_bytes=0, runners=1, timed=1) == 1
