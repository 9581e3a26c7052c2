"""While processors are timed, the farm's other work stands still; devices are locked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_contract import Farm
from probe_backend import job_of, state_of
from processes import LIMIT_S, alive, child_of, kill, named, wait_until

from workers import machine_lock, quiet_processors
from workers.job_records import (
    Built,
    Measured,
    Measurement,
    PoolSpec,
    WorkerReady,
)
from workers.machine_lock import DeviceLock, MachineLock
from workers.pools import create
from workers.processes import child_process
from workers.processes.child_process import ResponseDeadline
from workers.processes.supervised_child import ChildDied, ChildTimeout, SupervisedChild

HERE = str(Path(__file__).parent)


@pytest.fixture
def child() -> Iterator[SupervisedChild]:
    made = child_of("child_targets:Target", paths=(HERE,), name="standing")
    yield made
    made.retire()
    assert not named(os.getpid(), "standing")


def stopped(*pids: int) -> bool:
    return all(state_of(f"{pid}") == "T" for pid in pids)


# -- children that stand still ---------------------------------------------------------------------
def test_a_suspended_child_stands_still_with_its_helpers_and_goes_on(child):
    helper = child.request("spawn_near", timeout_s=LIMIT_S)
    child.suspend()
    wait_until(lambda: stopped(child.pid, helper))
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(child.request("echo", 1, timeout_s=LIMIT_S))
    )
    asking.start()
    assert not answers
    child.resume()
    asking.join(LIMIT_S)
    assert answers == [1]
    assert state_of(f"{helper}") != "T"


def test_a_suspended_child_can_be_killed(child):
    helper = child.request("spawn_near", timeout_s=LIMIT_S)
    detached = child.request("spawn", timeout_s=LIMIT_S)
    pid = child.pid
    child.suspend()
    wait_until(lambda: stopped(pid, helper))
    child.kill()
    assert not any(map(alive, (pid, helper, detached)))


def test_no_child_starts_while_it_is_suspended(child):
    child.suspend()
    starting = threading.Thread(target=child.start)
    starting.start()
    assert child.pid is None
    child.resume()
    starting.join(LIMIT_S)
    assert child.pid is not None


def test_a_suspended_child_that_is_retired_starts_no_more(child):
    child.suspend()
    ended = []

    def start() -> None:
        with pytest.raises(ChildDied, match="retired"):
            child.start()
        ended.append(True)

    starting = threading.Thread(target=start)
    starting.start()
    child.retire()
    starting.join(LIMIT_S)
    assert ended


def test_a_child_that_hangs_after_it_was_suspended_is_killed(child):
    child.start()
    threading.Timer(0.05, child.suspend).start()
    threading.Timer(0.5, child.resume).start()
    with pytest.raises(ChildTimeout):
        child.request("hang", timeout_s=0.3)


def test_time_limits_do_not_count_the_time_in_which_a_child_stands_still(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(child_process.time, "monotonic", lambda: now[0])
    deadline = ResponseDeadline(110.0, max_silence_s=4.0)
    deadline.heartbeat("candidate 0")
    now[0] = 103.0
    deadline.suspend()
    now[0] = 200.0
    assert deadline.until == 201.0
    assert deadline.silent_s == 3.0
    deadline.resume()
    assert (deadline.until, deadline.silent_s, deadline.suspended_s) == (201.0, 3.0, 97.0)
    deadline.heartbeat("candidate 1")
    assert deadline.until == 204.0
    now[0] = 205.0
    deadline.heartbeat("timing")
    assert deadline.until == 207.0
    assert not deadline.limited_by_silence


# -- a pool ----------------------------------------------------------------------------------------
def test_no_builder_runs_while_processors_are_timed(tmp_path, plugin):
    pool = create(PoolSpec(runners={"probe": 1}, builders=2, paths=plugin))
    farm = Farm.start(create(PoolSpec(runners={}, builders=1)), tmp_path)
    farm.pool.close()
    pool.start()
    try:
        pending = list(wait_for(pool, WorkerReady))
        wait_until(lambda: all(builder.pid for builder in pool._builders))
        pids = " ".join(f"{builder.pid}" for builder in pool._builders)
        for number in range(2):
            pool.submit_build(farm.build_job(f"b{number}", farm.config(""), slow=True))
        pool.submit_measure("probe-0", job_of({"states_of": pids}))
        pending = list(wait_for(pool, Measured))
        (measured,) = (event for event in pending if isinstance(event, Measured))
        assert isinstance(measured.result, Measurement)
        assert measured.result.clocks["states"] == "T T"
        built = [event for event in pending if isinstance(event, Built)]
        while len(built) < 2:
            built += wait_for(pool, Built)
    finally:
        pool.close(kill=True)


def wait_for(pool, kind: type) -> list:
    """Events up to one of this kind."""
    events: list = []

    def came() -> bool:
        events.extend(pool.poll(0.1))
        return any(isinstance(event, kind) for event in events)

    wait_until(came)
    return events


def test_the_driver_asks_no_strategy_while_processors_are_timed():
    seen: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def measure() -> None:
        with quiet_processors.quiet(lambda: False):
            seen.append("timed")
            entered.set()
            leave.wait(LIMIT_S)

    measuring = threading.Thread(target=measure)
    with quiet_processors.at_work() as free:
        assert free
        measuring.start()
        wait_until(lambda: bool(quiet_processors._timing))
        seen.append("asked")
    assert entered.wait(LIMIT_S)
    with quiet_processors.at_work() as free:
        assert not free
    leave.set()
    measuring.join(LIMIT_S)
    assert seen == ["asked", "timed"]
    with quiet_processors.at_work() as free:
        assert free


_OTHER_CAMPAIGN = """
import sys
from workers.quiet_processors import Yielder
class Worker:
    def suspend(self): print("suspended", flush=True)
    def resume(self): print("resumed", flush=True)
yielder = Yielder()
yielder.start([Worker()])
print("works", flush=True)
input()
"""


def test_workers_of_another_process_stand_still_as_well():
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER_CAMPAIGN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "works\n"
        with quiet_processors.quiet(lambda: False):
            assert other.stdout.readline() == "suspended\n"
        assert other.stdout.readline() == "resumed\n"
        other.communicate("\n")


# -- locks of the machine --------------------------------------------------------------------------
_HOLDER = """
import sys
from workers.machine_lock import DeviceLock
with DeviceLock(sys.argv[1], "the card").hold(lambda: False):
    print("holds", flush=True)
    input()
"""


@pytest.fixture
def name() -> Iterator[str]:
    made = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield made
    for each in (made, f"{made}-turn"):
        Path(MachineLock(each).path).unlink(missing_ok=True)


def holding(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, name, "nightly"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_waits_for_a_device_says_for_whom(name, monkeypatch, caplog):
    monkeypatch.setattr(machine_lock, "_SAY_AFTER_S", 0.0)
    with holding(name) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        lock = DeviceLock(name, "the card")
        assert not lock.take()

        def end_it_once_it_is_named() -> None:
            wait_until(lambda: bool(caplog.records))
            kill(other.pid)

        with caplog.at_level(logging.WARNING):
            threading.Thread(target=end_it_once_it_is_named).start()
            with lock.hold(lambda: False):
                pass  # the lock has ended with its process
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert f"waiting for the card, in use by process {other.pid} (-c" in said[0]
    assert "nightly" in said[0]


def test_two_processes_get_a_device_in_turns(name):
    lock = DeviceLock(name, "the card")
    with lock.hold(lambda: False):
        other = holding(name)
        wait_until(lambda: lock.waiting == 1)
    assert not lock.take()
    assert other.stdout is not None
    assert other.stdout.readline() == "holds\n"
    assert not lock.take()
    other.communicate("\n")
    with lock.hold(lambda: False):
        pass


def test_a_wait_for_a_device_ends_with_the_pool(name):
    with holding(name) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holds\n"
        with DeviceLock(name, "the card").hold(lambda: True):
            pass
        other.communicate("\n")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    shared = tmp_path / "lock"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(machine_lock, "_FOLDERS", (str(shared),))
    return shared


def test_a_lock_file_serves_all_users_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        lock = MachineLock("card")
        assert lock.take()
    finally:
        os.umask(before)
    assert Path(lock.path).stat().st_mode & 0o777 == 0o644
    lock.close()


@pytest.mark.parametrize("planted", ["link", "pipe", "folder"])
def test_what_others_plant_in_place_of_a_lock_is_left_alone(folder, tmp_path, caplog, planted):
    target = tmp_path / "target"
    path = Path(MachineLock("card").path)
    match planted:
        case "link":
            path.symlink_to(target)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    for _ in range(2):
        lock = MachineLock("card")
        assert lock.take()
        lock.close()
    assert not target.exists()
    assert len([r for r in caplog.records if f"{path} cannot be locked" in r.message]) == 1


def test_a_lock_file_that_was_deleted_is_made_again(folder):
    one, other = MachineLock("card"), MachineLock("card")
    assert one.take()
    Path(one.path).unlink()
    one.release()
    assert other.take()
    assert not one.take()
    for lock in (one, other):
        lock.close()
