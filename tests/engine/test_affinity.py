"""Who is given a task's work: devices that hold its inputs, and others once it pays."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from world import DEVICE, TOOLS, build, measure, spec

from tuner.engine import Build, Engine, Event, Measure
from tuner.engine.task import State
from workers.records import BuildJob, Built, JobLost, Measured, WorkerGone, WorkerInfo, WorkerReady


@dataclass
class Hall:
    """An engine told one event after another; its orders wait until the test answers them."""

    engine: Engine
    now: float = 0.0
    builds: list[BuildJob] = field(default_factory=list)
    orders: list[Measure] = field(default_factory=list)

    def tell(self, event: Event, after_s: float = 0.0) -> list[Measure]:
        """The measurements ordered in answer."""
        self.now += after_s
        told = self.engine.handle(event, self.now)
        self.builds += [one.job for one in told if isinstance(one, Build)]
        ordered = [one for one in told if isinstance(one, Measure)]
        self.orders += ordered
        return ordered

    def join(self, *names: str) -> list[Measure]:
        return [
            m for name in names for m in self.tell(WorkerReady(WorkerInfo(name, DEVICE, TOOLS)))
        ]

    def build(self, entrants: int, task_id: int = 1) -> list[Measure]:
        """Finish builds of the task until so many more variants of it can be measured."""
        search, ordered = self.engine.tasks[task_id - 1].search, []
        wanted = self.entrants(task_id) + entrants
        while self.entrants(task_id) < wanted:
            job = next(job for job in self.builds if job.job_id.startswith(f"{task_id}:"))
            self.builds.remove(job)
            ordered += self.tell(Built(job.job_id, build(job)))
        assert search.count(State.READY) + search.count(State.MEASURING) == wanted
        return ordered

    def entrants(self, task_id: int) -> int:
        search = self.engine.tasks[task_id - 1].search
        return search.count(State.READY) + search.count(State.MEASURING)

    def answer(self, order: Measure, took_s: float) -> list[Measure]:
        self.orders.remove(order)
        result = measure(order.job, random.Random(0))
        return self.tell(Measured(order.job.job_id, order.worker_id, result), took_s)


def held(config_s: float, *, tasks: int = 1) -> Hall:
    """w0 is at work on task 1, of which each variant takes so long; w1 has just joined, idle."""
    specs = [spec(at + 1, strategy="exhaustive") for at in range(tasks)]
    hall = Hall(Engine(specs, builders=8))
    hall.join("w0")
    (first,) = hall.build(1)
    assert not hall.answer(first, config_s)
    (second,) = hall.build(1)
    assert second.worker_id == "w0"
    assert not hall.join("w1")
    return hall


def test_a_few_short_measurements_are_left_to_the_worker_that_holds_the_inputs():
    hall = held(0.01)
    assert not hall.build(6)
    (second,) = hall.orders
    (third,) = hall.answer(second, 0.01)
    assert third.worker_id == "w0"
    assert len(third.job.entrants) == 6 + third.job.champion


def test_another_worker_is_given_some_once_enough_work_waits():
    hall = held(0.06)
    assert not hall.build(3)
    (order,) = hall.build(1)
    assert order.worker_id == "w1"
    assert len(order.job.entrants) == 4 + order.job.champion


def test_of_two_workers_that_hold_the_inputs_each_must_have_enough_before_a_third_makes_them():
    hall = held(0.06)
    hall.build(4)
    hall.join("w2")
    assert {order.worker_id for order in hall.orders} == {"w0", "w1"}
    assert not hall.build(6)
    (order,) = hall.build(1)
    assert order.worker_id == "w2"


def test_a_task_that_nobody_holds_goes_to_an_idle_worker_at_once():
    hall = held(0.01, tasks=2)
    assert not hall.build(3)
    (order,) = hall.build(1, task_id=2)
    assert order.worker_id == "w1"
    assert order.job.job_id.startswith("2:")


def test_when_the_holder_is_gone_another_worker_takes_over():
    hall = held(0.01)
    hall.build(3)
    (lost,) = hall.orders
    (order,) = hall.tell(WorkerGone("w0", "died"))
    assert order.worker_id == "w1"
    assert len(order.job.entrants) == 3 + order.job.champion
    assert not hall.tell(JobLost(lost.job.job_id, "w0 died"))
    (again,) = hall.answer(order, 0.01)
    assert again.worker_id == "w1"
    assert again.job.entrants[0] == lost.job.entrants[0]


def test_a_worker_that_comes_back_holds_nothing_any_more():
    hall = held(0.01)
    (lost,) = hall.orders
    hall.tell(WorkerGone("w0", "died"))
    (order,) = hall.tell(JobLost(lost.job.job_id, "w0 died"))
    assert order.worker_id == "w1"
    assert not hall.join("w0")
    assert not hall.build(3)
