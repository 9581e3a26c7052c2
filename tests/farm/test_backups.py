"""A copy of the database, made while a campaign runs, is a sound backup that can be resumed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from farms import SLOW, Farm, assert_sound, kill
from processes import wait_until

from search_spaces.records import config_key


def copy_by_shell(database: Path, copy: Path) -> None:
    if shutil.which("sqlite3") is None and os.environ.get("CI") != "true":
        pytest.skip("SQLite's shell is not installed")
    subprocess.run(["sqlite3", database, f".backup {copy}"], check=True)


def copy_by_vacuum(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", (f"{copy}",))


def restore(copy: Path, database: Path) -> None:
    """Put a copy in the place of a database and its log."""
    for path in database.parent.glob("tuner.db*"):
        path.unlink()
    copy.rename(database)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_copy", [copy_by_shell, pytest.param(copy_by_vacuum, marks=pytest.mark.full)]
)
def test_a_backup_of_a_running_campaign_resumes_to_the_same_winner(tmp_path, make_copy):
    farm = Farm(tmp_path / "farm", "random", trials=60, time_scale=SLOW)
    copy = tmp_path / "copy.db"
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 5)
        before = farm.count()
        make_copy(farm.database, copy)
        wait_until(lambda: farm.count() > before)
        assert driver.poll() is None
        assert kill(driver.pid)
    farm.assert_gone()
    farm.finish_quickly()
    assert_sound(farm)
    winner = farm.task().selection.winner

    restore(copy, farm.database)
    with farm.driver(arguments=["db", "check"]) as check:
        farm.ended(check)
    with farm.driver(arguments=["status", "--all", "--format", "json"]) as status:
        assert '"running"' in farm.ended(status)
    kept = {record.attempt_id: record for record in farm.records()}
    assert before <= len(kept) < farm.trials
    farm.finish_quickly()
    assert_sound(farm)
    assert config_key(farm.task().selection.winner) == config_key(winner)
    assert kept.items() <= {record.attempt_id: record for record in farm.records()}.items()
