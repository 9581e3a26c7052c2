"""A PostgreSQL server that crashes or freezes in mid-run: the run waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import yaml
from farms import SLOW
from postgres_farms import PostgresFarm
from postgres_server import PostgresServer
from processes import wait_until

from results_db import Store
from search_spaces.records import config_key

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def farm(postgres: PostgresServer, tmp_path: Path) -> PostgresFarm:
    """A farm whose trials are slow, so that its run is not over when the server has stopped."""
    short = {"TUNER__DATABASE__TIMEOUT": "2s"}
    url = postgres.new_database()
    slow = {"trials": 40, "builders": 1, "runners": 2, "time_scale": SLOW}
    return PostgresFarm(tmp_path / "f", url=url, variables=short, **slow)


def assert_whole(farm: PostgresFarm) -> None:
    (run,), trials = farm.stored()
    assert (run.status, run.holder, run.lease) == ("finished", "", "")
    assert sorted(trial.number for trial in trials.values()) == list(range(farm.trials))
    assert len({config_key(trial.config) for trial in trials.values()}) == farm.trials


@contextmanager
def away(postgres: PostgresServer) -> Iterator[None]:
    postgres.stop()
    try:
        yield
    finally:
        with suppress(AssertionError):
            postgres.start()


def test_a_run_outlives_a_crash_of_the_server_and_a_frozen_backend(
    postgres: PostgresServer, farm: PostgresFarm
) -> None:
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 3)
        with away(postgres):
            pass
        wait_until(lambda: farm.count() >= 10)
        frozen = _freeze(postgres, driver.pid)
        try:
            # What is stored from now on goes through another connection.
            assert farm.count() < farm.trials
            farm.ended(driver)
        finally:
            os.kill(frozen, signal.SIGCONT)
    assert_whole(farm)
    farm.assert_gone()


@pytest.mark.full
def test_a_run_whose_server_stays_away_ends_in_one_line_and_can_be_resumed(
    postgres: PostgresServer, farm: PostgresFarm
) -> None:
    patient = dict(farm.variables)
    farm.variables["TUNER__DATABASE__PATIENCE"] = "2s"
    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 3)
        with away(postgres):
            printed = farm.ended(driver, 2)
    assert "retrying for up to 2 s" in printed
    assert printed.count("error: ") == 1
    farm.assert_gone()
    before = farm.stored()[1]
    farm.variables = patient
    farm.finish_quickly()
    assert_whole(farm)
    assert before.items() <= farm.stored()[1].items()


@pytest.mark.full
def test_a_run_goes_on_with_the_standby_of_a_lost_server(
    postgres: PostgresServer, farm: PostgresFarm
) -> None:
    with postgres.replicate() as standby:
        servers = [each.url.rpartition("@")[2] for each in (postgres, standby)]
        hosts = "&".join(f"host={each}" for each in servers)
        name = farm.url.rpartition("/")[2]
        alone = f"postgresql+psycopg://tuner@{servers[1]}/{name}"
        farm.url = f"postgresql+psycopg://tuner@/{name}?{hosts}&target_session_attrs=read-write"
        with farm.driver() as driver:
            wait_until(lambda: farm.count() >= 3)
            with away(postgres):
                standby.promote()
                farm.ended(driver)
        farm.url = alone
        assert_whole(farm)
    farm.assert_gone()


def _freeze(postgres: PostgresServer, driver: int) -> int:
    """Stop the driver's server process between two of its transactions."""
    state = "SELECT pid, state FROM pg_stat_activity WHERE application_name = %s"
    with psycopg.connect(postgres.admin, autocommit=True) as look:
        while True:
            row = look.execute(state, [f"tuner:{driver}"]).fetchone()
            if row is None:  # the driver connects again
                time.sleep(0.01)
                continue
            os.kill(row[0], signal.SIGSTOP)
            if look.execute(state, [f"tuner:{driver}"]).fetchone() == (row[0], "idle"):
                return int(row[0])
            os.kill(row[0], signal.SIGCONT)


@pytest.mark.full
def test_ctrl_c_works_while_the_server_is_away(
    postgres: PostgresServer, farm: PostgresFarm
) -> None:
    log = farm.folder / "log"
    with farm.driver(stderr=log) as driver:
        wait_until(lambda: farm.count() >= 3)
        with away(postgres):
            wait_until(lambda: "retrying" in log.read_text())
            os.killpg(driver.pid, signal.SIGINT)
            wait_until(lambda: "finishing the jobs in flight" in log.read_text())
            assert driver.poll() is None
            os.killpg(driver.pid, signal.SIGINT)
            farm.ended(driver, 2)
    assert "Traceback" not in log.read_text()
    farm.assert_gone()


@pytest.mark.full
def test_a_scheduled_run_that_lost_its_server_is_resumed_by_the_next_tick(
    postgres: PostgresServer, farm: PostgresFarm
) -> None:
    config = farm.folder / "config.yaml"
    plan = yaml.safe_load(config.read_text())
    now = datetime.now(UTC)
    plan["campaigns"]["c"]["schedule"] = {"cron": f"{now.minute} {now.hour} * * *"}
    config.write_text(yaml.safe_dump(plan))
    tick = ["schedule", "tick", "--quiet"]
    patient = dict(farm.variables)
    farm.variables["TUNER__DATABASE__PATIENCE"] = "1s"
    with farm.driver(arguments=tick) as first:
        wait_until(lambda: farm.count() >= 3)
        with away(postgres):
            farm.ended(first, 2)
    before = farm.stored()[1]
    farm.variables = patient
    farm.configure(time_scale=0.1)
    config.write_text(
        yaml.safe_dump({**yaml.safe_load(config.read_text()), "campaigns": plan["campaigns"]})
    )
    with farm.driver(arguments=tick) as second:
        farm.ended(second)
    assert_whole(farm)
    assert before.items() <= farm.stored()[1].items()
    with Store.open(farm.url) as store:
        (fire,) = store.fires()
    assert (fire.state, fire.attempts) == ("finished", 2)
