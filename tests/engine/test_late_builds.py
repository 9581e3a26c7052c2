"""Builds that take far longer than all others of their task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from scenario import World, seeds, spec, toy_fault

from search_spaces.records import Status, config_key
from tuner.engine import Build, Engine, Finish, Record, TaskBudget
from workers.job_records import Built, JobLost


@dataclass
class Slow(World):
    """Some builds, by their numbers, are answered late, or what their host had is lost then."""

    slow: tuple[int, ...] = ()
    #: Builds of the same configs take long on the next builder too.
    lasting: bool = False
    lost: bool = False
    withheld: list[Built | JobLost] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def _react(self, instruction, rng, busy):
        found = [
            replace(each, result=replace(each.result, build_s=0.3))
            if isinstance(each, Built) else each
            for each in super()._react(instruction, rng, busy)
        ]  # fmt: skip
        if isinstance(instruction, Build):
            key = config_key(instruction.job.config)
            first = len(self.built) in self.slow
            if first or (self.lasting and key in self.keys):
                self.keys.add(key)
                self.withheld += [
                    JobLost(each.job_id, "its host is gone") if self.lost else each
                    for each in found
                ]
                return []
        if isinstance(instruction, Record) and config_key(instruction.record.config) in self.keys:
            found, self.withheld = self.withheld, []
        return found


def world_of(slow, seed=3, lasting=False, lost=False, **fields):
    fields = {"strategy": "random", "budget": TaskBudget(trials=16), **fields}
    engine = Engine([spec(**fields)], builders=2)
    return Slow(engine, seed, workers=1, slow=slow, lasting=lasting, lost=lost)


def late(world):
    return [record for _, record in world.records if record.status is Status.TIMEOUT]


def check_sound(world):
    assert world.finish == Finish("finished")
    assert not world.withheld
    assert len({record.number for _, record in world.records}) == len(world.records) == 16
    assert toy_fault(world.selections[1].winner) is None


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_another_builder_does_them(seed, lost):
    world = world_of((5, 9), seed, lost=lost).run()
    check_sound(world)
    assert not late(world)
    assert len(world.built) >= 18


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_they_are_given_up_after_the_second_and_no_later_answer_counts(seed, lost):
    world = world_of((5, 9), seed, lasting=True, lost=lost).run()
    check_sound(world)
    assert {config_key(record.config) for record in late(world)} == world.keys
    assert all("its build was given up after" in record.message for record in late(world))
    assert config_key(world.selections[1].winner) not in world.keys


@pytest.mark.parametrize(
    "fields", [{"slow": (1,)}, {"slow": (5, 9), "strategy": "exhaustive", "budget": TaskBudget()}]
)
def test_the_default_and_a_whole_space_are_awaited(fields):
    world = world_of(**fields)
    with pytest.raises(AssertionError, match="does not finish"):
        world.run()
    world.queue += world.withheld
    world.slow = ()
    world.run()
    assert world.finish == Finish("finished")
    assert not late(world)
