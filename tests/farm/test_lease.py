"""Who may drive a run: one living driver, and another one only in place of a dead one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from results_db import Store
from search_spaces.errors import TunerError
from tuner import lease


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        yield store


@pytest.fixture
def stranger():
    """A living process of this host that is not this one."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid
    child.communicate()


def held_by(store, holder: str, age_s: float):
    run = store.begin_run("nightly", "h", 1, {}, {})
    store.hold_run(run.run_id, holder)
    moment = datetime.now(UTC) - timedelta(seconds=age_s)
    path = store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE run SET heartbeat_at = ?", [f"{moment:%Y-%m-%d %H:%M:%S.%f}"])
    found = store.run(run.run_id)
    assert abs((found.heartbeat_at - moment).total_seconds()) < 1
    return found


def here(pid: int) -> str:
    host, _, _ = lease.holder().rpartition(":")
    return f"{host}:{pid}"


def test_a_living_holder_keeps_the_run(store, stranger):
    for holder in (here(stranger), "elsewhere:17"):
        run = held_by(store, holder, age_s=lease.DEAD_AFTER_S / 2)
        with pytest.raises(TunerError) as refused:
            lease.take(store, run)
        assert f"is under way at {holder}" in refused.value.message
        assert store.run(run.run_id).holder == holder


@pytest.mark.parametrize("age_s", [0, 2 * lease.DEAD_AFTER_S])
def test_a_process_that_is_gone_holds_nothing(store, age_s):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = held_by(store, here(gone.pid), age_s)
    lease.take(store, run)
    assert store.run(run.run_id).holder == here(os.getpid())


def test_a_process_that_has_the_number_of_a_dead_driver_holds_nothing(store, stranger):
    for holder in (here(stranger), "elsewhere:17"):
        run = held_by(store, holder, age_s=2 * lease.DEAD_AFTER_S)
        lease.take(store, run)
        assert store.run(run.run_id).holder == lease.holder()


def test_who_comes_second_is_told_who_came_first(store):
    """Both have seen the run without a holder."""
    run = store.begin_run("nightly", "h", 1, {}, {})
    store.hold_run(run.run_id, "elsewhere:17")
    with pytest.raises(TunerError, match="under way at elsewhere:17"):
        lease.take(store, run)


def test_a_driver_that_was_taken_for_dead_stops(store):
    run = store.begin_run("nightly", "h", 1, {}, {})
    lease.take(store, run)
    lease.keep(store, run.run_id)
    store.hold_run(run.run_id, "elsewhere:17", instead_of=lease.holder())
    with pytest.raises(TunerError, match="under way at elsewhere:17"):
        lease.keep(store, run.run_id)
    assert store.run(run.run_id).holder == "elsewhere:17"
