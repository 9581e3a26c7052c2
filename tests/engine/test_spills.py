"""Suggestions that have to spill are refused by builders; the search takes them for slow ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from scenario import World, spec, toy_fault, toy_space

from search_spaces.records import Status, config_key
from tuner.compare.given_tasks import GivenConfigs
from tuner.engine import Build, Engine, TaskBudget
from tuner.engine.task_spec import Aim
from workers.job_records import BuildJob, Built, Failure, StaticFacts

#: Configs that have to spill.
SPILLING = {config_key(config) for config in toy_space().enumerate() if config["block"] >= 512}
DEFAULT = {"block": 1024, "stages": 1, "order": "row"}
GIVEN = [DEFAULT, {**DEFAULT, "block": 512}]
REFUSED = Failure(Status.CONSTRAINTS, "too much is carried", facts=StaticFacts(spill_bytes=4))


@dataclass
class Refusing(World):
    """Builders that refuse spilling configs if the job says so."""

    jobs: list[BuildJob] = field(default_factory=list)

    def _react(self, instruction, rng, busy):
        found = super()._react(instruction, rng, busy)
        if not isinstance(instruction, Build):
            return found
        job = instruction.job
        self.jobs.append(job)
        if job.refuse_spills and config_key(job.config) in SPILLING:
            return [
                replace(each, result=REFUSED) if isinstance(each, Built) else each for each in found
            ]
        return found


def run(**more):
    task = spec(**{"budget": TaskBudget(trials=40), "default": DEFAULT, **more})
    if task.given:
        task = replace(task, strategy=GivenConfigs(task.given), budget=TaskBudget(trials=2))
    told = []
    tell = task.strategy.tell
    task.strategy.tell = lambda *result: (told.append(result), tell(*result))[1]
    kind = "interpreter" if task.compile_only else "simulated"
    world = Refusing(Engine([task], builders=2), seed=3, kind=kind).run()
    return world, told


@pytest.mark.parametrize("strategy", ["random", "bayes", "tpe"])
def test_suggestions_are_refused_and_the_default_has_its_time(strategy):
    world, told = run(strategy=strategy)
    records = {config_key(record.config): record for _, record in world.records}
    assert records[config_key(DEFAULT)].median_us
    refused = [record for record in records.values() if record.must_spill]
    assert {config_key(record.config) for record in refused} <= SPILLING - {config_key(DEFAULT)}
    assert refused
    assert world.selections[1].default_us
    assert toy_fault(world.selections[1].winner) is None
    best = math.inf
    for config, score, status in told:
        if records[config_key(config)].must_spill:
            slow = (pytest.approx(best + math.log(3)), Status.CORRECT)
            assert (score, status) == (slow if best < math.inf else (None, Status.CONSTRAINTS))
        elif score is not None:
            best = min(best, score)


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "exhaustive", "budget": TaskBudget()},
        {"compile_only": True},
        {"aim": Aim.COMPARE, "given": GIVEN},
    ],
    ids=["exhaustive", "compile-only", "given"],
)
def test_nothing_is_refused_of_what_somebody_asked_for(more):
    world, _ = run(**more)
    assert world.jobs
    assert not any(job.refuse_spills for job in world.jobs)


def test_an_earlier_refusal_holds_for_suggestions_alone():
    before, _ = run()
    refused = next(record for _, record in before.records if record.must_spill)
    world, _ = run(default=refused.config, known=(refused,))
    assert world.records[0][1].median_us
    known = tuple(record for _, record in before.records)
    spilling = {config_key(record.config) for record in known if record.must_spill}
    for strategy in ("random", "bayes"):  # which reach them by themselves, or try them first
        world, _ = run(strategy=strategy, known=known)
        assert spilling.isdisjoint(config_key(job.config) for job in world.jobs)
        assert spilling & {config_key(record.config) for _, record in world.records}
