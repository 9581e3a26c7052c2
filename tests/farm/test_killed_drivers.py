"""`kill -9` of the driver at any moment: no trial is lost or repeated, no process is left."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from farms import TRIALS, Farm, assert_sound, kill, outcomes, worker_processes
from processes import wait_until

from results_db.stored_records import TrialRecord
from search_spaces.records import config_key

STRATEGIES = ("random", "exhaustive", "tpe")
#: Of the driver of each strategy: twelve in all.
KILLS = 4


def killed_and_resumed(folder: Path, strategy: str) -> Farm:
    """A finished farm whose driver was killed repeatedly."""
    # Trials are slow, so that on a busy machine too a kill comes before the last one.
    farm = Farm(folder, strategy, builders=1, runners=2, time_scale=1.0)
    rng = random.Random(strategy)
    known: dict[str, TrialRecord] = {}
    # A driver stores up to 64 results in one moment; a kill must come before the last trial.
    for target in sorted(rng.sample(range(TRIALS - 80), KILLS)):
        with farm.driver() as driver:
            wait_until(lambda at=target: farm.count() >= at and any_at_work(driver.pid), 60)
            assert driver.poll() is None
            assert kill(driver.pid)
        farm.assert_gone()
        stored = {record.attempt_id: record for record in farm.records()}
        assert known.items() <= stored.items()
        assert target <= len(stored) < TRIALS
        known = stored
    farm.finish()
    farm.assert_gone()
    assert known.items() <= {r.attempt_id: r for r in farm.records()}.items()
    return farm


def any_at_work(driver: int) -> bool:
    return any(worker.at_work for worker in worker_processes(driver))


@pytest.fixture(scope="module")
def farms(tmp_path_factory) -> dict[str, Future[Farm]]:
    """A farm per strategy, all at once: most of a driver's start is waiting."""
    with ThreadPoolExecutor() as threads:
        return {
            strategy: threads.submit(
                killed_and_resumed, tmp_path_factory.mktemp("f") / "f", strategy
            )
            for strategy in STRATEGIES
        }


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_next_driver_resumes_the_run_of_a_killed_one(farms, undisturbed, strategy):
    farm = farms[strategy].result()
    assert_sound(farm)
    if strategy != "tpe":
        assert outcomes(farm.records()) == undisturbed(strategy)


@pytest.mark.slow
def test_another_run_of_the_same_campaign_measures_nothing(farms):
    farm = farms["exhaustive"].result()
    first = {config_key(record.config) for record in farm.records()}
    farm.finish()
    assert [run.status for run in farm.runs()] == ["finished"] * 2
    again = [record for record in farm.records() if record.source == "reused"]
    assert len(again) == TRIALS
    assert {config_key(record.config) for record in again} == first
    assert len(farm.records()) == 2 * TRIALS
