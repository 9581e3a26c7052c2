"""Hundreds of nodes that join and leave during a campaign."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from scenario import World, spec

from tuner.engine import Engine, Finish, Record, TaskBudget
from workers.job_records import JobLost, Measured, WorkerGone, WorkerReady

#: Numbers of nodes, of which each change tries the first, with the seeds of a campaign. A campaign
#: has a task for five nodes.
FLEETS = [(100, 0), *(pytest.param(200, seed, marks=pytest.mark.full) for seed in range(3))]


@dataclass
class Fleet(World):
    """At every record a node may leave, with the job that it has, and another may join."""

    #: Of records, at which a node leaves, and at which one joins.
    share: float = 0.0
    left: int = 0
    joined: int = 0
    _numbers: itertools.count = field(default_factory=lambda: itertools.count(1000))

    def handle(self, event, now):
        return self.engine.handle(event, now)  # its invariants take minutes to check here

    def _react(self, instruction, rng, busy):
        events = super()._react(instruction, rng, busy)
        if isinstance(instruction, Record) and self.finish is None:
            if rng.random() < self.share and len(self.engine.dispatcher.workers) > 1:
                events += self._leave(rng)
            if rng.random() < self.share:
                self.joined += 1
                events.append(WorkerReady(self._worker(next(self._numbers))))
        return events

    def _leave(self, rng):
        name = rng.choice(sorted(self.engine.dispatcher.workers))
        jobs = [each for each in self.queue if isinstance(each, Measured)]
        lost = [each for each in jobs if each.worker_id == name]
        answered = self.engine.dispatcher.workers[name].job_id is None
        if not lost and not answered:
            return []  # its answer is being made
        self.left += 1
        for each in lost:
            self.queue.remove(each)
        return [*(JobLost(each.job_id, "its node left") for each in lost),
                WorkerGone(name, "its node left")]  # fmt: skip


def play(share, nodes, seed):
    whole = {"strategy": "exhaustive", "budget": TaskBudget()}
    specs = [spec(task_id=number, **whole) for number in range(1, nodes // 5 + 1)]
    engine = Engine(specs, builders=2 * nodes)
    return Fleet(engine, seed=seed, workers=nodes, share=share).run()


@pytest.mark.parametrize(("nodes", "seed"), FLEETS)
def test_nothing_is_lost_or_doubled_and_the_same_configs_win(nodes, seed):
    quiet, moved = play(0.0, nodes, seed), play(0.4, nodes, seed)
    assert moved.finish == quiet.finish == Finish("finished")
    assert min(moved.left, moved.joined) > nodes
    for world in (quiet, moved):
        keys = [(task, record.number) for task, record in world.records]
        assert len(keys) == len({*keys})
        assert set(world.selections) == set(range(1, nodes // 5 + 1))
    assert len(moved.records) == len(quiet.records)
    winners = [{n: each.winner for n, each in w.selections.items()} for w in (quiet, moved)]
    assert winners[0] == winners[1]
