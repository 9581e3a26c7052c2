from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from probe_backend import job_of, measured
from processes import kill, named, wait_until

from search_spaces.records import Status, Workload
from workers.job_records import (
    Calibration,
    Failure,
    Mode,
    PoolSpec,
    Timing,
    WorkerReady,
)
from workers.measure.device_runner import DeviceRunner
from workers.pools import create
from workers.processes.worker_lost import WorkerLost

NAME = "probe-7"


@pytest.fixture
def runner(plugin):
    made = DeviceRunner("probe", worker_id=NAME, paths=plugin)
    yield made
    made.close()
    assert not named(os.getpid(), NAME)


def standby_of(runner: DeviceRunner) -> int:
    wait_until(lambda: runner.standby_pid is not None)
    assert runner.standby_pid is not None
    assert runner.standby_pid != runner.pid
    return runner.standby_pid


def test_a_ready_standby_takes_over_after_a_death(runner):
    assert runner.info.worker_id == NAME
    first, standby = runner.pid, standby_of(runner)
    assert measured(runner, job_of({"x": 1})).clocks["pid"] == first
    kill(runner.pid)
    assert measured(runner, job_of({"x": 1})).clocks["pid"] == standby
    assert standby_of(runner) not in (first, standby)


def test_a_confirmation_has_a_process_that_has_never_seen_its_task(runner):
    confirm = job_of({"x": 1}, mode=Mode.CONFIRM)
    other = Workload.of(n=2)
    first = runner.info and runner.pid
    assert measured(runner, confirm).clocks["pid"] == first
    standby = standby_of(runner)
    assert measured(runner, confirm).clocks["pid"] == standby
    # Either process may also confirm tasks that it has not seen.
    assert measured(runner, replace(confirm, workload=other)).clocks["pid"] == first
    assert measured(runner, replace(confirm, workload=other)).clocks["pid"] == standby
    # Both have seen this task by now.
    third = measured(runner, confirm).clocks["pid"]
    assert third not in (first, standby)
    assert runner.pid == first
    # A standby that has confirmed a task can still take over.
    kill(first)
    assert measured(runner, job_of({"x": 1})).clocks["pid"] == third


def test_another_search_of_a_confirmed_task_starts_a_new_standby(runner):
    search, confirm = job_of({"x": 1}), job_of({"x": 1}, mode=Mode.CONFIRM)
    assert runner.info
    first, standby = runner.pid, standby_of(runner)
    assert measured(runner, search).clocks["pid"] == first
    assert measured(runner, confirm).clocks["pid"] == standby
    assert measured(runner, replace(search, workload=Workload.of(n=2))).clocks["pid"] == first
    assert standby_of(runner) == standby
    assert measured(runner, search).clocks["pid"] == first
    wait_until(lambda: runner.standby_pid not in (None, standby))
    third = standby_of(runner)
    assert measured(runner, search).clocks["pid"] == first
    assert measured(runner, confirm).clocks["pid"] == third


def test_a_race_after_a_confirmation_starts_a_new_standby(runner):
    race = job_of({"x": 1}, {"x": 2}, mode=Mode.RACE)
    assert runner.info
    first, standby = runner.pid, standby_of(runner)
    assert measured(runner, race).clocks["pid"] == first
    assert standby_of(runner) == standby
    confirm = replace(race, mode=Mode.CONFIRM)
    assert measured(runner, confirm).clocks["pid"] == standby
    assert measured(runner, race).clocks["pid"] == first
    wait_until(lambda: runner.standby_pid not in (None, standby))
    third = standby_of(runner)
    assert third != first
    assert measured(runner, confirm).clocks["pid"] == third


def test_a_confirmation_whose_winner_failed_starts_a_new_standby(runner):
    assert runner.info
    first, standby = runner.pid, standby_of(runner)
    measured(runner, job_of({"x": 1}))
    confirm = job_of({"wrong": 1}, {"x": 1}, mode=Mode.CONFIRM)
    found = measured(runner, confirm)
    assert isinstance(found.outcomes[0], Failure)
    assert found.clocks["pid"] == standby
    wait_until(lambda: runner.standby_pid not in (None, standby))
    third = standby_of(runner)
    assert third != first
    assert measured(runner, job_of({"x": 1}, mode=Mode.CONFIRM)).clocks["pid"] == third


def test_no_standby_opens_the_device_while_a_confirmation_is_timed(tmp_path, runner):
    assert runner.info
    measured(runner, job_of({"x": 1}))
    standby = standby_of(runner)
    gate = tmp_path / "gate"
    slow = job_of({"until": f"{gate}"}, mode=Mode.CONFIRM)
    thread = threading.Thread(target=measured, args=(runner, slow))
    thread.start()
    wait_until(Path(f"{gate} is awaited").exists)
    counts = {len(named(os.getpid(), NAME)) for _ in range(20)}
    gate.touch()
    thread.join()
    assert counts == {5}  # a server, two workers, reapers
    assert standby_of(runner) == standby


def test_in_a_confirmation_a_hanging_candidate_is_killed(runner):
    hanging = [{"x": 1}, {"sleep_s": 600.0}, {"x": 2}]
    confirm = job_of(*hanging, mode=Mode.CONFIRM, baselines=("0",), candidate_timeout_s=6.0)
    first, hung, last = measured(runner, confirm).outcomes
    assert isinstance(hung, Failure)
    assert hung.status is Status.TIMEOUT
    assert "no result within 6 s" in hung.message
    assert (first.name, last.name) == ('{"x":1}', '{"x":2}')


def test_a_baseline_that_takes_too_long_fails_alone(runner):
    confirm = job_of({"x": 1}, mode=Mode.CONFIRM, baselines=("0", "60.0"), baseline_timeout_s=0.5)
    found = measured(runner, confirm)
    assert [outcome.name for outcome in found.outcomes] == ['{"x":1}']
    failure = found.baselines["60.0"]
    assert failure.status is Status.TIMEOUT
    assert failure.message == "baseline `60.0` took longer than 0.5 s"


def test_after_a_poisoned_context_the_others_are_measured_in_a_new_process(runner):
    batch = job_of({"x": 1}, {"poison": 1}, {"x": 2}, {"x": 3}, incumbent=True)
    assert runner.info
    first = runner.pid
    found = measured(runner, batch)
    kinds = [type(outcome) for outcome in found.outcomes]
    assert kinds == [Timing, Failure, Timing, Timing]
    assert all(o.samples_us for o in found.outcomes if isinstance(o, Timing))
    assert runner.pid != first
    races = measured(runner, replace(batch, mode=Mode.RACE, incumbent=False))
    assert [type(outcome) for outcome in races.outcomes] == kinds


def test_a_standby_that_has_died_is_not_used(runner):
    assert runner.info
    kill(standby_of(runner))
    wait_until(lambda: len(named(os.getpid(), NAME)) == 3)
    kill(runner.pid)
    assert measured(runner, job_of({"x": 1})).outcomes


def test_closing_does_not_wait_for_a_standby_that_is_starting(runner):
    assert runner.info
    runner.kill()
    wait_until(lambda: not named(os.getpid(), NAME))
    assert runner.standby_pid is None


@pytest.mark.parametrize(("kind", "options"), [("simulated", {}), ("probe", {"standby": False})])
def test_no_standby_if_it_is_turned_off(plugin, kind, options):
    made = DeviceRunner(kind, worker_id=NAME, options=options, paths=plugin)
    assert made.info
    first = made.pid
    assert len(named(os.getpid(), NAME)) == 3
    if kind == "probe":
        for _ in range(2):
            measured(made, job_of({"x": 1}, mode=Mode.CONFIRM))
        assert made.pid != first
        assert len(named(os.getpid(), NAME)) == 3
    made.close()


def test_a_backend_is_calibrated_once_and_may_have_no_calibration(runner, plugin):
    expected = Calibration(quantum_us=0.5, overhead_us={"times": 1})
    assert runner.info.calibration == expected
    assert runner.info.calibration == expected
    kill(runner.pid)
    # The next process gets the calibration with the job.
    assert measured(runner, job_of({"x": 1})).clocks["calibrated"] == 1
    pool = create(PoolSpec(runners={"probe": 1, "simulated": 1}, builders=1, paths=plugin))
    pool.start()
    ready: list[WorkerReady] = []

    def both() -> bool:
        ready.extend(event for event in pool.poll(0.2) if isinstance(event, WorkerReady))
        return len(ready) == 2

    wait_until(both)
    pool.close()
    found = {event.worker.worker_id: event.worker.calibration for event in ready}
    assert found == {"probe-0": expected, "simulated-0": None}


@pytest.mark.parametrize("end", ["the pool's", "its own"])
def test_only_a_death_of_its_own_during_the_calibration_is_a_warning(
    plugin, tmp_path, monkeypatch, caplog, end
):
    calibrating = tmp_path / "calibrating"
    monkeypatch.setenv("PROBE_CALIBRATES", f"{calibrating}")
    made = DeviceRunner("probe", worker_id=NAME, paths=plugin)

    def open_device() -> None:
        with suppress(WorkerLost):
            assert made.info

    opening = threading.Thread(target=open_device)
    opening.start()
    wait_until(calibrating.exists)
    if end == "its own":
        kill(made.pid)
        wait_until(lambda: "probe-7 cannot be calibrated: probe-7 died" in caplog.text)
    made.kill()
    opening.join()
    assert ("cannot be calibrated" in caplog.text) == (end == "its own")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_only_the_launching_thread_is_bound_to_its_processor(plugin):
    launch, *others = sorted(os.sched_getaffinity(0))
    made = DeviceRunner(
        "probe", worker_id=NAME, paths=plugin, launch_core=launch, cores=frozenset(others)
    )
    assert made.info
    standby = standby_of(made)
    assert os.sched_getaffinity(standby) == set(others)
    assert measured(made, job_of({"x": 1})).clocks["cores"] == f"[{launch}]"
    kill(made.pid)
    measured(made, job_of({"x": 1}))
    assert made.pid == standby
    assert os.sched_getaffinity(standby) == {launch}
    made.close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_builders_do_not_use_the_launching_processors(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pool = create(PoolSpec(runners={"cuda": 1}, builders=1))
    pool.start()
    wait_until(lambda: pool.warm)
    child = named(os.getpid(), "builder-0")[-1]
    expected = set(sorted(os.sched_getaffinity(0))[1:])
    assert os.sched_getaffinity(child) <= expected
    pool.close(kill=True)
