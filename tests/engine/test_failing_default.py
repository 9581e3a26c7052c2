"""A kernel whose default config fails, through the whole farm."""

from __future__ import annotations

from dataclasses import replace

from results_db import Store
from search_spaces.recorded.recorded_kernel import synthesize
from search_spaces.records import Status, config_key
from tuner.campaign import RunOptions, run_campaign
from tuner.settings import validate


def test_the_summary_of_a_run_names_a_default_that_fails(tmp_path):
    space = synthesize(40, seed=5, failures=0.3)
    broken = next(item for item in space.configs if item.status is not Status.CORRECT)
    replace(space, default=broken.config).save(tmp_path / "space.json")
    settings = validate(
        {
            "version": 1,
            "database": {"url": f"sqlite:///{tmp_path}/tuner.db"},
            "pool": {"builders": 1},
            "measure": {"baselines": []},
            "campaigns": {
                "c": {
                    "targets": ["simulated"],
                    "tasks": [{"kernel": "recorded:space.json"}],
                    "budget": {"trials": 20},
                }
            },
        },
        str,
    )
    options = RunOptions(report=False, export=False, base=tmp_path)
    outcome = run_campaign(settings, "c", options=options)
    assert "the default config of 1 of them fails" in outcome.summary
    with Store.open(settings.database.url) as store:
        (task,) = store.tasks(outcome.run_id)
    assert config_key(task.selection.default) == config_key(broken.config)
    assert task.selection.default_us is None
    assert task.selection.verdict == "undecided"
    assert "there is no default to compare with" in task.selection.reason
