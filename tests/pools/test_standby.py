from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import LIMIT_S, child_of, kill, named, wait_until

from workers.processes.standby import ChildWithStandby
from workers.processes.supervised_child import SupervisedChild

NAME = "standby-7"


@dataclass
class Gate:
    """Prepares children once it is open, and fails if `failing`."""

    open: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    failing: bool = False

    def prepare(self, child: SupervisedChild) -> None:
        self.waiting += 1
        assert self.open.wait(LIMIT_S)
        if self.failing:
            raise RuntimeError("no device")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def children(gate) -> Iterator[ChildWithStandby]:
    def make() -> SupervisedChild:
        paths = (str(Path(__file__).parent),)
        return child_of("child_targets:Target", paths=paths, name=NAME)

    made = ChildWithStandby(make, gate.prepare, standby=True)
    yield made
    gate.open.set()
    made.close()
    assert not named(os.getpid(), NAME)


def first_standby(children: ChildWithStandby, gate: Gate) -> int:
    """The process id of the first standby; from then on others wait at the gate."""
    children.ready()
    gate.open.set()
    standby = children.standby()
    assert standby is not None
    gate.open.clear()
    gate.waiting = 0
    assert standby.pid is not None
    return standby.pid


def standby_pid(children: ChildWithStandby) -> int | None:
    standby = children.standby()
    return standby.pid if standby is not None else None


def test_the_standby_serves_until_its_successor_is_ready(children, gate):
    standby = first_standby(children, gate)
    children.renew_standby()
    wait_until(lambda: gate.waiting == 1)
    assert standby_pid(children) == children.standby_pid == standby
    children.renew_standby()  # one is starting already
    gate.open.set()
    wait_until(lambda: children.standby_pid != standby)
    third = children.standby_pid
    assert standby_pid(children) == third not in (None, standby, children.current.pid)
    wait_until(lambda: len(named(os.getpid(), NAME)) == 6)
    assert gate.waiting == 1


def test_a_newer_standby_is_waited_for(children, gate):
    standby = first_standby(children, gate)
    gate.open.set()
    child = children.newer_standby()
    assert child is not None
    assert child.alive
    assert child.pid == children.standby_pid != standby


def test_a_standby_that_is_starting_is_the_newer_one(children, gate):
    standby = first_standby(children, gate)
    children.renew_standby()
    gate.open.set()
    wait_until(lambda: children.standby_pid != standby)
    starting, child = children.standby_pid, children.newer_standby()
    assert child is not None
    assert child.pid == starting
    assert gate.waiting == 1


def test_the_ready_standby_takes_over_while_another_one_starts(children, gate):
    standby = first_standby(children, gate)
    children.renew_standby()
    assert children.current.pid is not None
    kill(children.current.pid)
    wait_until(lambda: not children.current.alive)
    assert children.ready().pid == standby
    gate.open.set()
    assert standby_pid(children) not in (None, standby)


def test_if_no_newer_standby_starts_there_is_none(children, gate):
    first_standby(children, gate)
    gate.failing = True
    gate.open.set()
    assert children.newer_standby() is None
    # After two failures in a row no standby is started again.
    assert children.newer_standby() is None
    gate.failing = False
    assert children.standby() is None
