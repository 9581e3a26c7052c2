"""Runs whose SQLite file is deleted or locked, and a run whose driver was frozen."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from farms import Farm, assert_sound
from processes import wait_until

from results_db import Store

pytestmark = pytest.mark.slow


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """A write transaction of another connection during the block."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_deleted_database_ends_the_run_and_is_saved(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "farm", "random", trials=90, time_scale=1.0)
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 20, 60)
        known = {record.attempt_id for record in farm.records()}
        for path in farm.database.parent.iterdir():
            path.unlink()
        printed = farm.ended(driver, 2)
    rescued = farm.database.with_name("tuner.db.rescued")
    assert f"was deleted while it was in use; its contents were saved to {rescued}" in printed
    farm.assert_gone()
    assert list(farm.database.parent.iterdir()) == [rescued]
    rescued.rename(farm.database)
    (run,) = farm.runs()
    assert (run.status, run.holder) == ("interrupted", "")
    assert known <= {record.attempt_id for record in farm.records()}
    farm.finish()
    assert_sound(farm)


def test_a_run_waits_for_a_locked_database(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "farm", "random", trials=90, time_scale=1.0)
    farm.variables["TUNER__DATABASE__TIMEOUT"] = "0.1s"
    log = farm.folder / "log"
    with farm.driver(stderr=log) as driver:
        wait_until(lambda: farm.count() >= 20, 60)
        with locked(farm.database):
            wait_until(lambda: "database is locked; retrying" in log.read_text(), 60)
        assert driver.wait(120) == 0
    assert_sound(farm)


def test_a_frozen_driver_that_wakes_up_stops_and_changes_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "farm", "random", trials=90, time_scale=1.0)
    with farm.driver() as frozen:
        wait_until(lambda: farm.count() >= 20, 60)
        # Not during a transaction, which would lock out all others.
        with locked(farm.database):
            os.kill(frozen.pid, signal.SIGSTOP)
        with closing(sqlite3.connect(farm.database)) as connection, connection:
            older = "strftime('%Y-%m-%d %H:%M:%f000', heartbeat_at, '-124 seconds')"
            # As another machine sees it, which cannot see the process.
            process = "'another-boot 1 2 3'"
            connection.execute(f"UPDATE run SET heartbeat_at = {older}, process = {process}")
        farm.finish()
        (before,) = farm.runs()
        records = farm.records()
        assert len(records) == farm.trials
        os.kill(frozen.pid, signal.SIGCONT)
        printed = farm.ended(frozen, 2)
    assert "is finished; this process does not hold it" in printed
    assert farm.runs() == [before]
    assert farm.records() == records
    with Store.open(f"sqlite:///{farm.database}") as store:
        assert store.check() == []
    assert_sound(farm)
    farm.assert_gone()
