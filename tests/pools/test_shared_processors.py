"""Spare builders and timed CPU runners never work at the same time, and runners go first."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from processes import wait_until

from workers.pools.shared_processors import SharedProcessors


@pytest.fixture
def processors() -> Iterator[SharedProcessors]:
    made = SharedProcessors()
    yield made
    made.close()


def started(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_a_runner_waits_for_the_present_builds_and_later_builds_wait_for_it(processors):
    order: list[str] = []
    measured, leave = threading.Event(), threading.Event()
    assert processors.begin_build(lambda: True)
    assert processors.begin_build(lambda: True)

    def measure() -> None:
        with processors.measuring():
            order.append("measured")
            measured.set()
            leave.wait(30)

    def build() -> None:
        processors.begin_build(lambda: True)
        order.append("built")
        processors.end_build()

    runner = started(measure)
    wait_until(lambda: processors.claimed)
    builder = started(build)
    processors.end_build()
    assert not measured.wait(0.05)
    processors.end_build()
    assert measured.wait(30)
    leave.set()
    runner.join(30)
    builder.join(30)
    assert order == ["measured", "built"]


def test_a_builder_without_a_build_leaves_the_processor_free(processors):
    builds: list[str] = []
    got: list[bool] = []
    builder = started(lambda: got.append(processors.begin_build(lambda: bool(builds))))
    with processors.measuring():
        builds.append("build")
        processors.notify()
        assert got == []
    builder.join(30)
    assert got == [True]
    processors.end_build()


def test_closing_ends_every_wait():
    processors = SharedProcessors()
    assert processors.begin_build(lambda: True)
    got: list[bool] = []

    def measure() -> None:
        with processors.measuring():
            got.append(True)

    waiting = [started(measure), started(lambda: got.append(processors.begin_build(lambda: False)))]
    wait_until(lambda: processors.claimed)
    processors.close()
    for thread in waiting:
        thread.join(30)
    assert sorted(got) == [False, True]


def test_a_measurement_that_raises_ends_its_turn(processors):
    with pytest.raises(ZeroDivisionError), processors.measuring():
        raise ZeroDivisionError
    assert processors.begin_build(lambda: True)
    processors.end_build()
