"""Runs whose SQLite file is deleted or locked, and a run whose driver was frozen."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from farms import SLOW, Farm, assert_sound
from processes import wait_until
from recorded_campaigns import campaign_settings
from virtual_pool import VirtualPool

from results_db import Store, StoreError
from tuner.campaign import RunOptions, run_campaign
from workers.job_records import MeasureJob, PoolSpec


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    """Slow trials: the run is under way until it is quickened."""
    return Farm(tmp_path / "farm", "random", trials=60, time_scale=SLOW)


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """A write transaction of another connection during the block."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class Deleting(VirtualPool):
    """A pool in virtual time during whose twentieth measurement the database is deleted."""

    measured = 0
    database: Path

    def submit_measure(self, worker_id: str, job: MeasureJob) -> None:
        self.measured += 1
        if self.measured == 20:
            for path in self.database.parent.glob("tuner.db*"):
                path.unlink()
        super().submit_measure(worker_id, job)


def test_a_deleted_database_ends_the_run_and_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.campaign.driver._PLACE_S", 0.0)
    settings = campaign_settings(tmp_path, trials=90)
    pool = Deleting(PoolSpec("virtual", {"simulated": 1}, builders=1))
    pool.database = tmp_path / "tuner.db"
    options = RunOptions(report=False, export=False, base=tmp_path)
    with pytest.raises(StoreError) as caught:
        run_campaign(settings, "c", options=options, pool=pool)
    rescued = tmp_path / "tuner.db.rescued"
    told = f"was deleted while it was in use; its contents were saved to {rescued}"
    assert told in caught.value.message
    rescued.rename(pool.database)
    with Store.open(settings.database.url) as store:
        (run,) = store.runs()
        (task,) = store.tasks(run.run_id)
        assert (run.status, run.holder) == ("interrupted", "")
        kept = store.trials(task.task_id)
    assert kept
    outcome = run_campaign(settings, "c", options=options)
    assert (outcome.run_id, outcome.status, outcome.trials) == (run.run_id, "finished", 90)
    with Store.open(settings.database.url) as store:
        assert store.trials(task.task_id)[: len(kept)] == kept


@pytest.mark.slow
def test_a_run_waits_for_a_locked_database(farm: Farm) -> None:
    farm.variables["TUNER__DATABASE__TIMEOUT"] = "0.1s"
    farm.configure(time_scale=1.0)
    log = farm.folder / "log"
    with farm.driver(stderr=log) as driver:
        wait_until(lambda: farm.count() >= 5)
        with locked(farm.database):
            wait_until(lambda: "database is locked; retrying" in log.read_text())
        farm.ended(driver)
    assert_sound(farm)


@pytest.mark.full
@pytest.mark.slow
def test_a_frozen_driver_that_wakes_up_stops_and_changes_nothing(farm: Farm) -> None:
    with farm.driver() as frozen:
        wait_until(lambda: farm.count() >= 5)
        # Not during a transaction, which would lock out all others.
        with locked(farm.database):
            os.kill(frozen.pid, signal.SIGSTOP)
        with closing(sqlite3.connect(farm.database)) as connection, connection:
            older = "strftime('%Y-%m-%d %H:%M:%f000', heartbeat_at, '-124 seconds')"
            # As another machine sees it, which cannot see the process.
            process = "'another-boot 1 2 3'"
            connection.execute(f"UPDATE run SET heartbeat_at = {older}, process = {process}")
        farm.finish_quickly()
        (before,) = farm.runs()
        records = farm.records()
        assert len(records) == farm.trials
        os.kill(frozen.pid, signal.SIGCONT)
        printed = farm.ended(frozen, 2)
    assert "is finished; this process does not hold it" in printed
    assert farm.runs() == [before]
    assert farm.records() == records
    assert_sound(farm)
    farm.assert_gone()
