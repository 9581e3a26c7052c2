"""A pool that outlives the runs it serves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_spaces import synthesize
from recorded_campaigns import CountingPool

from search_spaces.recorded.recorded_kernel import load_kernel
from workers.job_records import (
    BuildJob,
    Built,
    KernelRef,
    Measured,
    MeasureJob,
    Measurement,
    PoolSpec,
    WorkerReady,
)
from workers.pools.kept_pool import KeptPool

SPEC = PoolSpec("virtual", {"simulated": 2}, builders=2)


class Pools:
    """Makes pools in virtual time and keeps them."""

    def __init__(self) -> None:
        self.made: list[CountedPool] = []

    def __call__(self, spec: PoolSpec) -> CountedPool:
        self.made.append(CountedPool(spec))
        return self.made[-1]


class CountedPool(CountingPool):
    lost = 0

    @property
    def runners(self) -> int:
        return super().runners - self.lost


@pytest.fixture
def kernel(tmp_path):
    synthesize(40, seed=1, failures=0.0).save(tmp_path / "space.json")
    return load_kernel(tmp_path / "space.json")


def begun(kept: KeptPool, spec: PoolSpec = SPEC) -> list[str]:
    """Begin a run; returns the workers that are ready at once."""
    pool = kept.for_run(spec)
    pool.start()
    events = pool.poll(0.0)
    assert all(isinstance(event, WorkerReady) for event in events)
    return sorted(event.worker.worker_id for event in events)


def build_job(kernel, job_id: str = "job-1") -> BuildJob:
    workload = kernel.workloads()[0]
    config = kernel.default_config(workload, kernel.device)
    return BuildJob(job_id, KernelRef(kernel.spec), workload, config, kernel.device)


def until(kept: KeptPool, count: int) -> list:
    events: list = []
    for _ in range(200):
        events += kept.poll(1.0)
        if len(events) >= count:
            return events
    raise AssertionError(f"only {events}")


def measure_job(kernel, artifact, job_id: str) -> MeasureJob:
    return MeasureJob(job_id, KernelRef(kernel.spec), artifact_workload(kernel), (artifact,))


def artifact_workload(kernel):
    return kernel.workloads()[0]


def test_the_second_run_gets_the_same_workers_at_once():
    pools = Pools()
    kept = KeptPool(pools)
    for _ in range(3):
        assert begun(kept) == ["simulated-0", "simulated-1"]
        assert sorted(each.worker_id for each in kept.describe_workers()) == [
            "simulated-0",
            "simulated-1",
        ]
        assert (kept.runners, kept.builders) == (2, 2)
        kept.close(kill=True)
    (pool,) = pools.made
    assert (pool.started, pool.closed) == (1, 0)
    kept.end()
    kept.end()
    assert pool.closed == 1
    assert begun(kept) == ["simulated-0", "simulated-1"]
    assert len(pools.made) == 2


def test_answers_come_under_the_ids_of_the_run(kernel):
    kept = KeptPool(Pools())
    begun(kept)
    kept.submit_build(build_job(kernel))
    (built,) = until(kept, 1)
    assert isinstance(built, Built)
    assert built.job_id == "job-1"
    kept.submit_measure("simulated-1", measure_job(kernel, built.result, "job-2"))
    (measured,) = until(kept, 1)
    assert isinstance(measured, Measured)
    assert (measured.job_id, measured.worker_id) == ("job-2", "simulated-1")
    assert isinstance(measured.result, Measurement)


def test_late_answers_of_an_earlier_run_are_dropped(kernel):
    kept = KeptPool(Pools())
    begun(kept)
    kept.submit_build(build_job(kernel, "job-1"))
    (built,) = until(kept, 1)
    kept.submit_build(build_job(kernel, "job-2"))
    kept.submit_measure("simulated-1", measure_job(kernel, built.result, "job-3"))
    kept.close()
    assert begun(kept) == ["simulated-0"], "the other one still has a job of the run before"
    kept.submit_build(build_job(kernel, "job-2"))
    events = until(kept, 2)
    ready = [event.worker.worker_id for event in events if isinstance(event, WorkerReady)]
    assert ready == ["simulated-1"], "its job has ended"
    assert [event.job_id for event in events if not isinstance(event, WorkerReady)] == ["job-2"]


def test_a_kill_ends_the_workers_only_where_jobs_are_in_flight(kernel):
    pools = Pools()
    kept = KeptPool(pools)
    begun(kept)
    kept.submit_build(build_job(kernel))
    kept.close(kill=True)
    assert pools.made[0].closed == 1
    assert len(begun(kept)) == 2
    assert len(pools.made) == 2


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, builders=3),
        replace(SPEC, paths=("/elsewhere",)),
        replace(SPEC, runners={"simulated": 1}),
        replace(SPEC, options={"simulated": {"seed": 7}}),
    ],
)
def test_a_run_with_other_needs_replaces_the_pool(spec):
    pools = Pools()
    kept = KeptPool(pools)
    begun(kept)
    kept.close()
    begun(kept, spec)
    assert [pool.closed for pool in pools.made] == [1, 0]
    assert kept.builders == spec.builders
    assert kept.runners == spec.runners["simulated"]


def test_kinds_of_earlier_runs_are_kept():
    pools = Pools()
    kept = KeptPool(pools)
    kept.for_run(replace(SPEC, runners={"cpu": 1}))
    kept.start()
    begun(kept)
    kept.close()
    kept.for_run(replace(SPEC, runners={"cpu": 1}))
    kept.start()
    assert len(pools.made) == 2, "the second pool has both kinds"


def test_a_pool_that_lost_a_runner_for_good_is_replaced():
    pools = Pools()
    kept = KeptPool(pools)
    begun(kept)
    pools.made[0].lost = 1
    kept.close()
    assert begun(kept) == ["simulated-0", "simulated-1"]
    assert [pool.closed for pool in pools.made] == [1, 0]


def test_renewed_workers_are_other_processes_of_the_same_spec():
    pools = Pools()
    kept = KeptPool(pools)
    kept.replace_workers()
    begun(kept)
    kept.close()
    kept.replace_workers()
    assert begun(kept) == ["simulated-0", "simulated-1"]
    assert [pool.closed for pool in pools.made] == [1, 0]


def test_a_recording_in_virtual_time_uses_the_clock_of_the_pool_behind():
    kept = KeptPool(Pools())
    begun(kept)
    before = kept.clock()
    kept.poll(5.0)
    assert kept.clock() == before + 5.0
