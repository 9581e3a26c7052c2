from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import kill, named, wait_until

from workers.supervision.standby import SparedChild
from workers.supervision.supervised_child import SupervisedChild

NAME = "spared-7"


@dataclass
class Gate:
    """Prepares children once it is open, and fails for those it is told to."""

    open: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0
    failing: bool = False

    def prepare(self, child: SupervisedChild) -> None:
        self.waiting += 1
        assert self.open.wait(60)
        if self.failing:
            raise RuntimeError("no device")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def children(gate) -> Iterator[SparedChild]:
    def make() -> SupervisedChild:
        paths = (str(Path(__file__).parent),)
        return SupervisedChild("child_targets:Target", paths=paths, name=NAME)

    made = SparedChild(make, gate.prepare, spare=True)
    yield made
    gate.open.set()
    made.close()
    assert not named(os.getpid(), NAME)


def first_spare(children: SparedChild, gate: Gate) -> int:
    """The process id of the first spare; from then on others wait at the gate."""
    children.ready()
    gate.open.set()
    spare = children.apart()
    assert spare is not None
    gate.open.clear()
    gate.waiting = 0
    assert spare.pid is not None
    return spare.pid


def pid_apart(children: SparedChild) -> int | None:
    spare = children.apart()
    return spare.pid if spare is not None else None


def test_the_spare_serves_until_the_one_that_replaces_it_is_up(children, gate):
    spare = first_spare(children, gate)
    children.refresh()
    wait_until(lambda: gate.waiting == 1)
    assert pid_apart(children) == children.spare_pid == spare
    children.refresh()  # one is coming already
    gate.open.set()
    wait_until(lambda: children.spare_pid != spare)
    third = children.spare_pid
    assert pid_apart(children) == third not in (None, spare, children.current.pid)
    wait_until(lambda: len(named(os.getpid(), NAME)) == 6)
    assert gate.waiting == 1


def test_another_spare_is_waited_for(children, gate):
    spare = first_spare(children, gate)
    gate.open.set()
    child = children.another()
    assert child is not None
    assert child.alive
    assert child.pid == children.spare_pid != spare


def test_who_is_coming_is_the_other_one(children, gate):
    spare = first_spare(children, gate)
    children.refresh()
    gate.open.set()
    wait_until(lambda: children.spare_pid != spare)
    coming, child = children.spare_pid, children.another()
    assert child is not None
    assert child.pid == coming
    assert gate.waiting == 1


def test_the_spare_that_is_up_takes_over_while_another_is_coming(children, gate):
    spare = first_spare(children, gate)
    children.refresh()
    assert children.current.pid is not None
    kill(children.current.pid)
    wait_until(lambda: not children.current.alive)
    assert children.ready().pid == spare
    gate.open.set()
    assert pid_apart(children) not in (None, spare)


def test_without_another_one_there_is_none_rather_than_the_same_again(children, gate):
    first_spare(children, gate)
    gate.failing = True
    gate.open.set()
    assert children.another() is None
    # Twice in a row, and it is done without.
    assert children.another() is None
    gate.failing = False
    assert children.apart() is None
