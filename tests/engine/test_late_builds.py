"""Builds that take far longer than all others of their task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from scenario import World, seeds, spec, toy_fault

from search_spaces.records import Status
from tuner.engine import Build, Engine, Finish, Record, TaskBudget
from workers.job_records import Built


@dataclass
class Slow(World):
    """Some builds, by their numbers, are answered once their search does not wait any more."""

    slow: tuple[int, ...] = ()
    withheld: list[Built] = field(default_factory=list)

    def _react(self, instruction, rng, busy):
        found = [
            replace(each, result=replace(each.result, build_s=0.3))
            if isinstance(each, Built) else each
            for each in super()._react(instruction, rng, busy)
        ]  # fmt: skip
        if isinstance(instruction, Build) and len(self.built) in self.slow:
            self.withheld += [each for each in found if isinstance(each, Built)]
            return []
        if isinstance(instruction, Record) and instruction.record.status is Status.TIMEOUT:
            found, self.withheld = self.withheld, []
        return found


def world_of(slow, seed=3, **fields):
    fields = {"strategy": "random", "budget": TaskBudget(trials=16), **fields}
    return Slow(Engine([spec(**fields)], builders=2), seed, workers=1, slow=slow)


def late(world):
    return [record for _, record in world.records if record.status is Status.TIMEOUT]


@pytest.mark.parametrize("seed", seeds(6))
def test_a_search_gives_them_up_and_takes_no_later_answer(seed):
    world = world_of((5, 9), seed).run()
    assert world.finish == Finish("finished")
    assert not world.withheld
    assert len(late(world)) == 2
    assert len({record.number for _, record in world.records}) == len(world.records) == 16
    assert all("its build was given up after" in record.message for record in late(world))
    winner = world.selections[1].winner
    assert winner not in [record.config for record in late(world)]
    assert toy_fault(winner) is None


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
