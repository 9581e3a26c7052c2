"""Whole campaigns over one PostgreSQL database: several drivers at once, killed and resumed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from farms import SLOW, kill
from made_up_spaces import synthesize
from postgres_farms import PostgresFarm
from processes import wait_until

from results_db import Store
from search_spaces.records import config_key
from tuner.cli import invoke

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def make_farm(new_postgres: Callable[[], str], tmp_path: Path) -> Callable[..., PostgresFarm]:
    """Farms that share a new, empty database."""
    url = new_postgres()

    def make(name: str, **changes: object) -> PostgresFarm:
        return PostgresFarm(tmp_path / name, builders=1, runners=2, url=url, **changes)

    return make


@pytest.mark.full
def test_drivers_share_a_database_and_a_killed_one_resumes(make_farm):
    other_space = synthesize(160, seed=8, failures=0.2, twins=0.1, build_s=0.1)
    one = make_farm("one", trials=80, time_scale=SLOW)
    other = make_farm("other", trials=40, space=other_space)
    # Both find an empty database and create the schema.
    with one.driver() as first, other.driver() as second:
        wait_until(lambda: one.count() >= 5)
        assert first.poll() is None
        assert kill(first.pid)
        other.ended(second)
    one.assert_gone()
    runs, known = one.stored()
    assert 5 <= len(known) < one.trials
    assert sorted(run.status for run in runs) == ["finished", "running"]

    one.finish_quickly()
    runs, trials = one.stored()
    assert [run.status for run in runs] == ["finished", "finished"]
    assert known.items() <= trials.items()
    for farm, found in ((one, trials), (other, other.stored()[1])):
        assert sorted(trial.number for trial in found.values()) == list(range(farm.trials))
        assert len({config_key(trial.config) for trial in found.values()}) == farm.trials
        measured = [t.binary_hash for t in found.values() if t.source == "measured"]
        assert len([b for b in measured if b]) == len({b for b in measured if b})


def test_a_database_on_a_server_is_read_by_every_command(make_farm, tmp_path, capsys, monkeypatch):
    farm = make_farm("read", trials=30)
    farm.url = farm.url.replace("tuner@", "tuner:sesame@")
    assert "30 trials" in farm.finish()
    monkeypatch.chdir(farm.folder)
    monkeypatch.setenv("TUNER__DATABASE__URL", farm.url)

    def tuner(*arguments: str) -> str:
        assert invoke([*arguments]) == 0
        return capsys.readouterr().out

    (task,) = json.loads(tuner("status", "--format", "json"))
    assert task["stage"] == "done"
    page = tmp_path / "report.html"
    printed = tuner("report", "--output", f"{page}") + page.read_text()
    for style in ("tuner", "csv", "parquet", "space", "t4"):
        printed += tuner("export", "--format", style, "--output", f"{tmp_path / style}")
        assert any((tmp_path / style).iterdir())
    printed += tuner("db", "check")
    printed += (counts := tuner("db", "stats"))
    assert "30" in counts
    assert "sesame" not in printed
    # Another campaign on the same database reuses the results.
    again = make_farm("again", trials=10, space=farm.space)
    again.finish()
    _, trials = again.stored()
    assert len(trials) == 40
    assert any(trial.source == "reused" for trial in trials.values())


def test_a_dump_of_a_running_campaign_resumes_to_the_same_winner(make_farm, new_postgres, tmp_path):
    farm = make_farm("dumped", trials=40, time_scale=SLOW)
    dump, copy = tmp_path / "dump.sql", new_postgres()

    def plain(url: str) -> str:
        return url.replace("+psycopg", "")

    with farm.driver() as driver:
        wait_until(lambda: farm.count() >= 5)
        before = farm.count()
        subprocess.run(["pg_dump", "--file", dump, plain(farm.url)], check=True)
        wait_until(lambda: farm.count() > before)
        assert driver.poll() is None
        assert kill(driver.pid)
    farm.assert_gone()

    def finish() -> str:
        """The winner after the same command, which leaves every trial once."""
        farm.finish_quickly()
        (run,), trials = farm.stored()
        assert run.status == "finished"
        assert sorted(trial.number for trial in trials.values()) == list(range(farm.trials))
        assert len({config_key(trial.config) for trial in trials.values()}) == farm.trials
        with Store.open(farm.url) as store:
            (task,) = store.tasks(run.run_id)
            assert store.check() == []
        return config_key(task.selection.winner)

    winner = finish()
    farm.url = copy
    stop = "--set=ON_ERROR_STOP=1"
    subprocess.run(
        ["psql", "--quiet", "--no-psqlrc", stop, "--file", dump, plain(copy)], check=True
    )
    with farm.driver(arguments=["db", "check"]) as check:
        farm.ended(check)
    with farm.driver(arguments=["status", "--all", "--format", "json"]) as status:
        assert '"running"' in farm.ended(status)
    kept = farm.stored()[1]
    assert before <= len(kept) < farm.trials
    assert finish() == winner
    assert kept.items() <= farm.stored()[1].items()
