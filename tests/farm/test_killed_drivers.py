"""`kill -9` of the driver at any moment: no trial is lost or repeated, no process is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
from farms import SLOW, TRIALS, Farm, assert_sound, kill, outcomes, worker_processes
from processes import wait_until

from results_db.stored_records import TrialRecord
from search_spaces.records import config_key

#: How often the driver of each strategy is killed.
KILLS = {"random": 1, "exhaustive": 4, "tpe": 4}


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory) -> Callable[[str], Farm]:
    """Makes a finished farm whose driver was killed repeatedly."""

    @cache
    def made(strategy: str) -> Farm:
        folder = tmp_path_factory.mktemp("killed") / strategy
        farm = Farm(folder, strategy, builders=1, runners=2, time_scale=SLOW)
        known: dict[str, TrialRecord] = {}
        # A driver stores up to 64 results in one moment; a kill must come before the last trial.
        for target in sorted(random.Random(strategy).sample(range(24), KILLS[strategy])):
            with farm.driver() as driver:
                wait_until(lambda at=target: farm.count() >= at and any_at_work(driver.pid))
                assert driver.poll() is None
                assert kill(driver.pid)
            farm.assert_gone()
            stored = {record.attempt_id: record for record in farm.records()}
            assert known.items() <= stored.items()
            assert target <= len(stored) < TRIALS
            known = stored
        farm.finish_quickly()
        farm.assert_gone()
        assert known.items() <= {r.attempt_id: r for r in farm.records()}.items()
        return farm

    return made


def any_at_work(driver: int) -> bool:
    return any(worker.at_work for worker in worker_processes(driver))


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["random", *(pytest.param(name, marks=pytest.mark.full) for name in ("exhaustive", "tpe"))],
)
def test_the_next_driver_resumes_the_run_of_a_killed_one(killed_and_resumed, undisturbed, strategy):
    farm = killed_and_resumed(strategy)
    assert_sound(farm)
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy)


@pytest.mark.slow
def test_another_run_of_the_same_campaign_measures_nothing(killed_and_resumed):
    farm = killed_and_resumed("random")
    first = {config_key(record.config) for record in farm.records()}
    farm.finish()
    assert [run.status for run in farm.runs()] == ["finished"] * 2
    again = [record for record in farm.records() if record.source == "reused"]
    assert len(again) == TRIALS
    assert {config_key(record.config) for record in again} == first
    assert len(farm.records()) == 2 * TRIALS
