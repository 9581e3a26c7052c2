"""Tasks that evaluate given configs, which is what `bench` and `verify` ask of the engine."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import World, spec, toy_fault, toy_space

from results_db.stored_records import Source
from search_spaces.records import Status, Workload, config_key
from tuner.compare.given_tasks import GivenConfigs
from tuner.engine import Aim, Engine, Finish, TaskBudget
from workers.job_records import Mode

SMALL = Workload.of(n=37)
EVERY = list(toy_space().enumerate())
numbers = st.lists(st.integers(0, len(EVERY) - 1), min_size=1, max_size=12, unique=True)


def given_spec(task_id: int, configs, aim: Aim, **more):
    found = spec(task_id=task_id, budget=TaskBudget(trials=len(configs)), aim=aim, **more)
    return replace(found, strategy=GivenConfigs(configs), given=configs)


def built(configs):
    return [each for each in configs if toy_fault(each) is not Status.COMPILE]


def fault(config):
    """How a config fails in a confirmation or verification of the toy, which crashes in neither."""
    found = toy_fault(config)
    return None if found is Status.RUNTIME else found


def keys(configs):
    return sorted(map(config_key, configs))


@given(numbers, st.sampled_from([Aim.COMPARE, Aim.VERIFY]), st.floats(0.0, 0.3), st.integers(0, 99))
@settings(max_examples=60)
def test_every_given_config_has_one_record_whatever_is_lost(places, aim, losses, seed):
    configs = [EVERY[place] for place in places]
    specs = [given_spec(task, configs, aim, check_size=SMALL) for task in (1, 2)]
    world = World(Engine(specs, builders=3), seed=seed, losses=losses).run()
    assert world.finish == Finish("finished")
    for task in (1, 2):
        records = [record for number, record in world.records if number == task]
        assert keys(each.config for each in records) == keys(configs)
        assert [stage for stage in world.stages[task]] == ["search", "done"]
        for record in records if not losses else ():
            assert record.status == (fault(record.config) or Status.CORRECT)
            timed = aim is Aim.COMPARE and record.status is Status.CORRECT
            assert bool(record.samples_us) == timed


@given(numbers, st.integers(0, 99))
@settings(max_examples=40)
def test_a_comparison_is_one_confirmation_of_all_that_builds_in_the_given_order(places, seed):
    configs = [EVERY[place] for place in places]
    world = World(Engine([given_spec(1, configs, Aim.COMPARE)], builders=3), seed=seed).run()
    jobs = [job for job in world.measured if job.candidates]
    if not built(configs):
        assert not jobs
        return
    (job,) = jobs
    assert job.mode is Mode.CONFIRM
    assert [each.config for each in job.candidates] == built(configs)
    assert job.baselines == ("eager",)
    assert not job.verified
    selection = world.selections[1]
    right = [each for each in configs if fault(each) is None]
    assert selection.winner == (right or built(configs))[0]
    assert len(world.baselines[1]) == 1


@pytest.mark.parametrize("aim", [Aim.COMPARE, Aim.VERIFY])
def test_the_check_size_is_built_for_what_it_is_needed_for(aim):
    configs = [each for each in EVERY if toy_fault(each) is None][:4]
    unchecked = [config_key(configs[-1])]
    task = given_spec(1, configs, aim, check_size=SMALL, unchecked=unchecked)
    world = World(Engine([task], builders=3)).run()
    checked = [job.candidates[0].config for job in world.measured if job.checks]
    assert keys(checked) == keys(configs[:1] if aim is Aim.COMPARE else configs[:3])
    at_size = [job.config for job in world.built if job.workload == SMALL]
    assert keys(at_size) == keys(checked)


@pytest.mark.parametrize("settled", [False, True])
def test_settled_builds_are_not_measured(settled):
    configs = [each for each in EVERY if toy_fault(each) is None][:3]
    asked = []

    def is_settled(device, artifacts):
        asked.append([each.config for each in artifacts])
        return settled and len(artifacts) == len(configs)

    world = World(Engine([given_spec(1, configs, Aim.COMPARE, is_settled=is_settled)], 2)).run()
    assert configs in asked
    measured = [job for job in world.measured if job.candidates]
    assert bool(measured) != settled
    sources = {record.source for _, record in world.records}
    assert sources == {Source.BUILT if settled else Source.MEASURED}


def test_draining_drops_what_is_not_in_flight():
    configs = random.Random(1).sample(EVERY, 12)
    specs = [given_spec(task, configs, Aim.VERIFY) for task in (1, 2, 3)]
    world = World(Engine(specs, builders=2), drain_after=4).run()
    assert world.finish is not None
    assert world.finish.status == "interrupted"
    assert 4 <= len(world.records) < 36
