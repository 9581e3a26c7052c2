"""Who gets a device next, of processes and campaigns that wait for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import kill, wait_until

from workers import machine_lock
from workers.machine_lock import MOST_PASSES, DeviceLock, MachineLock

_WAITER = """
import sys
from workers.machine_lock import DeviceLock
with DeviceLock(sys.argv[1], "the card", int(sys.argv[2])).hold(lambda: False):
    print("holds", flush=True)
    input()
"""


@pytest.fixture
def name() -> Iterator[str]:
    yield from names()


def names() -> Generator[str]:
    made = f"test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield made
    finally:
        for each in (made, f"{made}-turn"):
            Path(MachineLock(each).path).unlink(missing_ok=True)


def start(name: str, priority: int = 0) -> subprocess.Popen[str]:
    """A process that waits for the device and holds it until a line comes; it has its place."""
    looks = DeviceLock(name, "the card")
    before = looks.waiting
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITER, name, f"{priority}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: looks.waiting == before + 1)
    looks.close()
    return process


def await_turn(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"


def test_processes_get_a_device_as_they_came_but_for_priority_and_the_dead(name):
    first = start(name)
    await_turn(first)
    second, third, fourth, urgent = (start(name, priority) for priority in (0, 0, 0, 1))
    kill(third.pid)
    kill(first.pid)
    for process in (urgent, second, fourth):
        await_turn(process)
        assert not DeviceLock(name, "the card").take()
        process.communicate("\n")
    for ended in (first, third):
        ended.wait()
        ended.communicate()
    lock = DeviceLock(name, "the card")
    assert not lock.waiting
    assert lock.take()
    lock.close()


class Line:
    """Locks of one device, and the order in which they got it."""

    def __init__(self, name: str, priorities: list[int]) -> None:
        self.priorities = priorities
        self.locks = [DeviceLock(name, "the card", priority) for priority in priorities]
        self.arrived: list[int] = []
        self.holder: int | None = None
        #: By waiting lock: later ones that got the device, with the steps of priority between.
        self.passed_by: dict[int, list[int]] = {}

    def act(self, at: int) -> None:
        """The next thing that this one can do."""
        if self.holder == at:
            self.locks[at].leave()
            self.holder = None
        elif at not in self.arrived:
            assert self.locks[at].join()
            self.arrived.append(at)
            self.passed_by[at] = []
        elif self.locks[at].advance():
            assert self.holder is None
            place = self.arrived.index(at)
            for other in self.arrived[:place]:
                self.passed_by[other].append(self.priorities[at] - self.priorities[other])
            self.arrived.remove(at)
            self.holder = at

    def check(self) -> None:
        for passes in self.passed_by.values():
            assert all(steps > 0 for steps in passes)
            assert len(passes) <= MOST_PASSES * max(passes, default=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=2, max_size=5),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_nobody_is_passed_more_often_than_its_priority_allows(priorities, seed, returns):
    made = names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_lock, "_RETURN_S", float("inf") if returns else 0.0)
        line = Line(next(made), priorities)
        for at in random.Random(seed).choices(range(len(priorities)), k=400):
            line.act(at)
            line.check()
        for lock in line.locks:
            lock.close()
    made.close()


def test_a_lower_priority_has_every_tenth_job(name, monkeypatch):
    """Both come back at once for their next job, and the device is kept for the higher one."""
    monkeypatch.setattr(machine_lock, "_RETURN_S", float("inf"))
    line, order = Line(name, [0, 1]), []
    line.act(0)
    line.act(1)
    while len(order) < 40:
        for at in (0, 1):
            line.act(at)
            if line.holder == at:
                order.append(at)
                line.act(at)  # leaves
                line.act(at)  # comes back
    # Of the jobs in between one came earlier, and the others have passed.
    assert order == ([1] * MOST_PASSES + [0, 1]) * 4
    for lock in line.locks:
        lock.close()


def test_a_device_is_not_kept_for_who_stays_away(name, monkeypatch):
    monkeypatch.setattr(machine_lock, "_RETURN_S", 0.0)
    line = Line(name, [0, 1])
    for at in (1, 1, 0, 1, 0):  # the higher one has it and leaves, while the lower one waits
        line.act(at)
    assert line.holder == 0
    for lock in line.locks:
        lock.close()
