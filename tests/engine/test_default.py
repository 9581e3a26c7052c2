"""A default that fails: the winner is compared with what `triton.autotune` would choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_spaces import synthesize
from recorded_campaigns import campaign_settings
from scenario import World, spec, toy_fault, toy_space, toy_us

from results_db import Store
from search_spaces.records import Status, config_key
from tuner.campaign import RunOptions, run_campaign
from tuner.engine import Engine, TaskBudget

CONFIGS = list(toy_space().enumerate())
BROKEN = [config for config in CONFIGS if toy_fault(config)]
RIGHT = [config for config in CONFIGS if not toy_fault(config)]


def run(**more):
    world = World(Engine([spec(**more)], builders=2), seed=3).run()
    return world, world.selections[1]


@pytest.mark.parametrize("status", [Status.COMPILE, Status.RUNTIME, Status.CORRECTNESS])
def test_a_default_that_fails_is_replaced_by_the_fastest_correct_listed_config(status):
    first = next(config for config in BROKEN if toy_fault(config) is status)
    slow, fast = sorted(RIGHT, key=toy_us)[-1], sorted(RIGHT, key=toy_us)[20]
    # The strategy is exhaustive, so all listed configs are measured, and faster ones too.
    _, selection = run(
        default=first,
        listed=[first, slow, fast],
        strategy="exhaustive",
        budget=TaskBudget(),
    )
    assert config_key(selection.default) == config_key(fast)
    assert toy_us(selection.winner) < toy_us(fast)
    assert selection.verdict == "faster"
    assert selection.default_us
    assert f"the first listed config fails ({status}" in selection.reason
    assert "as triton.autotune would choose" in selection.reason


def test_listed_configs_are_asked_until_one_is_correct():
    right = max(RIGHT, key=toy_us)
    listed = [*BROKEN[:3], right, RIGHT[0]]
    world, selection = run(default=listed[0], listed=listed, budget=TaskBudget(trials=24))
    asked = {config_key(record.config): record for _, record in world.records}
    assert [asked[config_key(c)].strategy for c in listed[:4]] == ["default"] * 4
    assert config_key(selection.default) in {config_key(c) for c in listed[3:]}
    assert selection.default_us


def test_without_listed_configs_there_is_no_default_and_the_reason_says_so():
    _, selection = run(default=BROKEN[0])
    assert config_key(selection.default) == config_key(BROKEN[0])
    assert selection.default_us is None
    assert selection.verdict == "undecided"
    assert "there is no default to compare with" in selection.reason


def test_a_default_that_works_is_the_default_whatever_is_listed():
    default = max(RIGHT, key=toy_us)
    _, selection = run(default=default, listed=[default, *RIGHT[:5]])
    assert config_key(selection.default) == config_key(default)
    assert "fails" not in selection.reason


def test_the_summary_of_a_run_names_a_default_that_fails(tmp_path):
    space = synthesize(40, seed=5, failures=0.3)
    broken = next(item for item in space.configs if item.status is not Status.CORRECT)
    replace(space, default=broken.config).save(tmp_path / "space.json")
    settings = campaign_settings(tmp_path, trials=20)
    options = RunOptions(report=False, export=False, base=tmp_path)
    outcome = run_campaign(settings, "c", options=options)
    assert "the default config of 1 of them fails" in outcome.summary
    with Store.open(settings.database.url) as store:
        (task,) = store.tasks(outcome.run_id)
    assert config_key(task.selection.default) == config_key(broken.config)
    assert (task.selection.default_us, task.selection.verdict) == (None, "undecided")
