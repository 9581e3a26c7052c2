"""The driver hands on to the store what workers say of their devices and what finals found."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest import mock

import pytest
from sample_data import BASELINES, CALIBRATION, DEVICE, FINALS, KEY, SELECTION, new_task, trial
from virtual_pool import VirtualPool

from results_db import Store, StoreAwayError, StoreError, TrialRecord
from search_spaces.records import Status
from tuner.campaign.driver import Driver
from tuner.campaign.options import Control
from tuner.campaign.write_queue import MOST_WAITING
from tuner.engine import Engine, Event, Finish, Instruction, Record, Select
from workers.job_records import (
    Built,
    Failure,
    Measured,
    PoolEvent,
    PoolSpec,
    WorkerInfo,
)


@dataclass(slots=True)
class ScriptedEngine(Engine):
    """An engine that returns fixed instructions once `awaited` workers are known, then finishes."""

    instructions: list[Instruction] = field(default_factory=list)
    awaited: int = 1

    def handle(self, event: Event, now: float) -> list[Instruction]:
        Engine.handle(self, event, now)
        if len(self.dispatcher.workers) < self.awaited:
            return []
        return [*self.instructions, Finish("finished")]


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    with Store.open(sqlite_url) as store:
        yield store


def _drive(store: Store, workers: list[WorkerInfo], *instructions: Instruction) -> None:
    engine = ScriptedEngine([], builders=0, instructions=list(instructions), awaited=len(workers))
    # The engine finishes before the driver uses a pool.
    driver = Driver(engine, cast("Any", None), store, run_id=1)
    assert driver.run(workers) == Finish("finished")


def test_what_workers_calibrated_is_kept_once(store: Store) -> None:
    first = WorkerInfo("w0", DEVICE, KEY.toolchain, "node-7", CALIBRATION)
    other = replace(first, worker_id="w1", device=replace(DEVICE, uuid="GPU-2"))
    silent = replace(first, worker_id="w2", calibration=None)
    for _ in range(2):
        _drive(store, [first, other, silent])
    found = store.calibrations(DEVICE.fingerprint)
    assert [each.device.uuid for each in found] == ["GPU-2", "GPU-1"]
    assert {each.host for each in found} == {"node-7"}
    assert [each.calibration for each in found] == [CALIBRATION] * 2


def test_finals_are_kept_with_the_selection(store: Store) -> None:
    task = new_task(store)
    worker = WorkerInfo("w0", DEVICE, KEY.toolchain)
    _drive(store, [worker], Select(task.task_id, SELECTION, BASELINES, FINALS))
    (found,) = store.tasks(task.run_id)
    assert (found.selection, found.baselines, found.finals) == (SELECTION, BASELINES, FINALS)
    _drive(store, [worker], Select(task.task_id, SELECTION, BASELINES))
    (found,) = store.tasks(task.run_id)
    assert found.finals == ()


@dataclass(slots=True)
class Heard(Engine):
    """An engine that records its events and finishes after a fixed number of answers."""

    awaited: int = 4
    heard: list[Event] = field(default_factory=list)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        self.heard.append(event)
        return [Finish("finished")] if len(self.heard) == self.awaited else []


class Burst(VirtualPool):
    """A pool whose workers answered several jobs at the same moment."""

    def __init__(self, *events: PoolEvent) -> None:
        super().__init__(PoolSpec("virtual", {}, 1))
        for event in events:
            self._at(0.0, event)


def test_devices_are_answered_before_builders_that_have_their_next_build(store: Store) -> None:
    failure = Failure(Status.RUNTIME, "it does not matter")
    built = [Built(f"b{number}", failure) for number in range(2)]
    measured = [Measured(f"m{number}", "w0", failure) for number in range(2)]
    pool = Burst(built[0], measured[0], built[1], measured[1])
    engine = Heard([], builders=1)
    run_id = new_task(store).run_id
    assert Driver(engine, pool, store, run_id=run_id).run([]) == Finish("finished")
    assert engine.heard == [*measured, *built]


@dataclass(slots=True)
class Recording(Engine):
    """An engine that stores a trial for every answer and finishes after a fixed number."""

    task_id: int = 0
    awaited: int = 3
    answers: int = 0
    then: Callable[[], object] = lambda: None

    def handle(self, event: Event, now: float) -> list[Instruction]:
        if not isinstance(event, Measured):
            return []
        self.answers += 1
        self.then()
        number = self.answers
        end = [Finish("finished")] if number == self.awaited else []
        return [Record(self.task_id, trial(number)), *end]


def _burst(answers: int) -> Burst:
    failure = Failure(Status.RUNTIME, "it does not matter")
    return Burst(*(Measured(f"m{number}", "w0", failure) for number in range(answers)))


def test_workers_that_wait_are_answered_before_results_are_written(store: Store) -> None:
    task = new_task(store)
    stored: list[int] = []
    engine = Recording([], builders=1, task_id=task.task_id)
    engine.then = lambda: stored.append(len(store.trials(task.task_id)))
    driver = Driver(engine, _burst(3), store, run_id=task.run_id)
    assert driver.run([]) == Finish("finished")
    assert stored == [0, 0, 0]
    assert [record.number for record in store.trials(task.task_id)] == [1, 2, 3]
    assert driver.recorded == 3


def test_results_do_not_pile_up_while_workers_never_wait(store: Store) -> None:
    task = new_task(store)
    behind: list[int] = []
    engine = Recording([], builders=1, task_id=task.task_id, awaited=200)
    engine.then = lambda: behind.append(engine.answers - len(store.trials(task.task_id)))
    assert Driver(engine, _burst(200), store, run_id=task.run_id).run([]) == Finish("finished")
    assert 1 < max(behind) < 100
    assert len(store.trials(task.task_id)) == 200


def test_no_result_waits_long_while_workers_never_do(store: Store) -> None:
    """A strategy may think for long between two answers; what is measured by then is safe."""
    task = new_task(store)
    stored: list[int] = []
    moment = itertools.count()
    engine = Recording([], builders=1, task_id=task.task_id, awaited=20)
    engine.then = lambda: stored.append(len(store.trials(task.task_id)))
    # Every look at this clock finds it half a second later.
    driver = Driver(engine, _burst(20), store, run_id=task.run_id, clock=lambda: next(moment) / 2)
    assert driver.run([]) == Finish("finished")
    assert all(answers - kept <= 2 for answers, kept in enumerate(stored))


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_what_was_measured_is_written_however_a_run_ends(store: Store, how: str) -> None:
    task, control = new_task(store), Control()

    def end() -> None:
        if engine.answers == 2:
            control.kill()
            if how == "raised":
                raise ZeroDivisionError

    engine = Recording([], builders=1, task_id=task.task_id, then=end)
    driver = Driver(engine, _burst(3), store, task.run_id, control)
    if how == "raised":
        with pytest.raises(ZeroDivisionError):
            driver.run([])
    else:
        assert driver.run([]).status == "interrupted"
    kept = [record.number for record in store.trials(task.task_id)]
    assert kept == ([1] if how == "raised" else [1, 2])


def test_a_store_that_fails_ends_the_run_and_is_not_tried_again(store: Store) -> None:
    task = new_task(store)
    tried: list[int] = []

    def full(task_id: int, record: TrialRecord) -> bool:
        tried.append(record.number)
        raise StoreError("tuner.db: database or disk is full", "make room")

    engine = Recording([], builders=1, task_id=task.task_id)
    with mock.patch.object(store, "record_trial", full), pytest.raises(StoreError, match="full"):
        Driver(engine, _burst(3), store, run_id=task.run_id).run([])
    assert tried == [1]


def test_workers_go_on_while_the_database_is_away(store: Store) -> None:
    task = new_task(store)
    record = store.record_trial

    def away_until_all_have_come(task_id: int, trial: TrialRecord) -> bool:
        if engine.answers < engine.awaited:
            raise StoreAwayError("the server is away")
        return record(task_id, trial)

    engine = Recording([], builders=1, task_id=task.task_id, awaited=200)
    driver = Driver(engine, _burst(200), store, run_id=task.run_id, patience_s=60)
    with mock.patch.object(store, "record_trial", away_until_all_have_come):
        assert driver.run([]) == Finish("finished")
    assert (driver.recorded, len(store.trials(task.task_id))) == (200, 200)


def test_workers_wait_when_too_much_is_unwritten(store: Store) -> None:
    task, control = new_task(store), Control()
    away = mock.Mock(side_effect=StoreAwayError("the server is away"))

    def stop_some_time() -> None:
        if engine.answers == MOST_WAITING:
            threading.Timer(0.5, control.kill).start()

    engine = Recording([], builders=1, task_id=task.task_id, awaited=5000, then=stop_some_time)
    driver = Driver(engine, _burst(5000), store, task.run_id, control, patience_s=60)
    with mock.patch.object(store, "record_trial", away):
        assert driver.run([]).status == "interrupted"
    assert engine.answers == MOST_WAITING
    assert store.trials(task.task_id) == []


def test_a_long_outage_ends_the_run(store: Store) -> None:
    task = new_task(store)
    away = mock.Mock(side_effect=StoreAwayError("the server is away"))
    engine = Recording([], builders=1, task_id=task.task_id)
    driver = Driver(engine, _burst(3), store, task.run_id, patience_s=0.2)
    with mock.patch.object(store, "record_trial", away), pytest.raises(StoreAwayError):
        driver.run([])
    assert away.call_count > 1
