"""The standby process prepares confirmations while the other process measures."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from probe_backend import job_of, measured, read_recorded
from processes import named, wait_until

from workers.job_records import Measurement, Mode
from workers.measure.device_runner import DeviceRunner

NAME = "probe-8"


@pytest.fixture
def runner(plugin, device_times):
    made = DeviceRunner("probe", worker_id=NAME, paths=plugin)
    assert made.info
    wait_until(lambda: made.standby_pid is not None)
    yield made
    made.close()
    assert not named(os.getpid(), NAME)


def confirmed(runner: DeviceRunner, n: int = 1) -> Measurement:
    return measured(runner, job_of({"x": 1}, n=n, mode=Mode.CONFIRM))


def idle(runner: DeviceRunner) -> None:
    """Run enough jobs to give a part of the preparation its turn among them."""
    for _ in range(10):
        measured(runner, job_of({"x": 1}, mode=Mode.VERIFY))


def parts(device_times: Path, kind: str = "part") -> int:
    return sum(what == kind for what, *_ in read_recorded(device_times))


def test_the_standby_has_done_everything_before_the_confirmation(runner, device_times):
    standby = runner.standby_pid
    measured(runner, job_of(upcoming_baselines=("0", "compile")))
    wait_until(lambda: parts(device_times) == 3)
    measured(runner, job_of({"x": 1}, upcoming_baselines=("0", "compile")))
    found = confirmed(runner)
    assert found.clocks["pid"] == standby
    first, rest = found.clocks["parts"].split(", ")[:2], found.clocks["parts"].split(", ")[2:]
    assert sorted(first) == ["import", "task"]
    assert rest == ["launch 0", "launch compile", "compile compile", "launch compile"]


def test_several_tasks_are_prepared_and_each_of_them_once(runner, device_times):
    for n in (1, 2, 3):
        measured(runner, job_of({"x": 1}, n=n, upcoming_baselines=("0",)))
    wait_until(lambda: parts(device_times) == 6)
    for n in (1, 2, 3, 3, 2, 1):
        measured(runner, job_of({"x": 1}, n=n, upcoming_baselines=("0",)))
    idle(runner)
    assert confirmed(runner, n=2).clocks["parts"].count("task") == 3
    assert parts(device_times) == 6


def test_other_baselines_of_a_later_run_are_prepared_too(runner, device_times):
    measured(runner, job_of({"x": 1}, upcoming_baselines=("0",)))
    wait_until(lambda: parts(device_times) == 2)
    measured(runner, job_of({"x": 1}, upcoming_baselines=("0.01", "0.02")))
    wait_until(lambda: parts(device_times) == 5)
    done = confirmed(runner).clocks["parts"].split(", ")
    assert done[-2:] == ["launch 0.01", "launch 0.02"]


def test_a_task_without_a_confirmation_is_not_prepared(runner, device_times):
    measured(runner, job_of({"x": 1}, mode=Mode.VERIFY, upcoming_baselines=("0",)))
    measured(runner, job_of({"x": 1}))
    idle(runner)
    assert read_recorded(device_times) == [
        one for one in read_recorded(device_times) if one[0] == "job"
    ]


def test_no_part_uses_the_device_while_a_job_does(runner, device_times):
    names = tuple(f"0.{digits}" for digits in ("02", "021", "022", "023", "024"))
    measured(runner, job_of(upcoming_baselines=names))
    for _ in range(300):
        measured(runner, job_of({"sleep_s": 0.01}, upcoming_baselines=names))
        time.sleep(0.02)
        if parts(device_times) == 6:
            break
    assert parts(device_times) == 6
    uses = read_recorded(device_times)
    assert {what for what, *_ in uses} == {"part", "job"}
    for (_, _, ended), (_, started, _) in itertools.pairwise(uses):
        assert ended <= started


def test_parts_take_their_turn_in_a_search_without_pauses(runner, device_times):
    measured(runner, job_of({"x": 1}))
    for _ in range(10_000):
        measured(runner, job_of({"sleep_s": 0.005}, upcoming_baselines=("0",)))
        if parts(device_times) == 2:
            break
    assert parts(device_times) == 2


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_part_that_ends_the_standby_costs_no_result(runner, device_times, fault):
    standby = runner.standby_pid
    measured(runner, job_of(upcoming_baselines=(fault,)))
    wait_until(lambda: parts(device_times, "fault") == 1)
    first = runner.pid
    for _ in range(3):
        assert measured(runner, job_of({"x": 1}, upcoming_baselines=(fault,))).outcomes
    assert runner.pid == first
    found = confirmed(runner)
    assert found.clocks["pid"] not in (standby, first)
    # The task is not tried again; others are prepared as before.
    assert found.clocks["parts"] == ""
    measured(runner, job_of({"x": 1}, n=2, upcoming_baselines=("0",)))
    idle(runner)
    assert confirmed(runner, n=2).clocks["parts"].count("launch 0") <= 1


def test_a_part_that_fails_is_left_to_the_confirmation(runner, device_times):
    measured(runner, job_of(upcoming_baselines=("0.01", "raise")))
    wait_until(lambda: parts(device_times) >= 2)
    idle(runner)
    measured(runner, job_of({"x": 1}))
    assert confirmed(runner).outcomes


def test_a_standby_that_took_over_is_followed_by_one_that_prepares_again(runner, device_times):
    measured(runner, job_of({"x": 1}, upcoming_baselines=("0",)))
    wait_until(lambda: parts(device_times) == 2)
    standby = runner.standby_pid
    os.kill(runner.pid, 9)
    measured(runner, job_of({"x": 1}, upcoming_baselines=("0",)))
    assert runner.pid == standby
    wait_until(lambda: parts(device_times) == 4)
    found = confirmed(runner)
    assert found.clocks["pid"] != standby
    assert sorted(found.clocks["parts"].split(", ")) == ["import", "launch 0", "task"]


def test_a_series_of_crashes_ends_the_preparation_of_a_task(runner, device_times):
    for prepared in (2, 4, 6, 6):
        measured(runner, job_of({"x": 1}, upcoming_baselines=("0",)))
        wait_until(lambda prepared=prepared: parts(device_times) == prepared)
        wait_until(lambda: runner.standby_pid is not None)
        os.kill(runner.pid, 9)
    idle(runner)
    assert confirmed(runner).outcomes
    assert parts(device_times) == 6
