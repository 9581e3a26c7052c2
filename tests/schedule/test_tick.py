"""Firing through the real store: exactly once over hosts, and every outcome on record."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from results_db import Store
from search_spaces.errors import TunerError
from tuner.config import Settings
from tuner.scheduler import serve, tick

NOON = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Ran:
    run_id: int | None = None
    status: str = "finished"
    summary: str = "fine"


def settings(**crons: str) -> Settings:
    return Settings.model_validate(
        {
            "campaigns": {
                name: {"tasks": [{"kernel": "softmax"}], "schedule": {"cron": cron}}
                for name, cron in crons.items()
            }
        }
    )


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'farm.db'}") as opened:
        yield opened


def test_what_is_due_starts_once_and_its_end_is_recorded(store):
    plans = settings(nightly="0 12 * * *", later="0 13 * * *")
    started: list[str] = []

    def start(name):
        started.append(name)
        return Ran()

    fires = tick(plans, store, NOON, "a", start)
    assert [fire.state for fire in fires] == ["finished"]
    assert tick(plans, store, NOON, "b", start) == []
    assert started == ["nightly"]
    (fire,) = store.fires("nightly")
    assert (fire.state, fire.host, fire.message) == ("finished", "a", "fine")
    assert fire.instant == NOON.replace(second=0)


def test_missed_firings_are_coalesced_and_on_record(store):
    plans = settings(hourly="0 * * * *")
    tick(plans, store, NOON, "a", lambda _: Ran())
    fires = tick(plans, store, NOON + timedelta(hours=5), "a", lambda _: Ran())
    assert len(fires) == 1
    states = {fire.instant.hour: fire.state for fire in store.fires("hourly")}
    expected = {hour: "missed" for hour in range(13, 17)}
    assert states == {12: "finished", **expected, 17: "finished"}


def test_a_clock_that_steps_back_fires_nothing_again(store):
    plans = settings(often="*/10 * * * *")
    tick(plans, store, NOON, "a", lambda _: Ran())
    before = store.fires()
    assert tick(plans, store, NOON - timedelta(hours=3), "a", lambda _: Ran()) == []
    assert store.fires() == before


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (TunerError("no such kernel", "mend it"), "no such kernel"),
        (ZeroDivisionError("x" * 3), "ZeroDivisionError: xxx"),
        (Ran(status="interrupted"), "interrupted"),
        (Ran(status="failed"), "failed"),
    ],
)
def test_a_run_that_fails_is_on_record_and_the_next_one_starts(store, outcome, message):
    def start(name):
        if name == "second":
            return Ran()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    fires = tick(settings(first="0 12 * * *", second="0 12 * * *"), store, NOON, "a", start)
    assert [(fire.schedule, fire.state) for fire in fires] == [
        ("first", "failed"),
        ("second", "finished"),
    ]
    assert store.fires("first")[0].message == message


def test_an_interrupt_is_recorded_and_passed_on(store):
    def start(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tick(settings(only="0 12 * * *"), store, NOON, "a", start)
    assert store.fires("only")[0].state == "failed"


def test_nothing_starts_after_a_request_to_stop(store):
    stop = threading.Event()

    def start(_):
        stop.set()
        return Ran()

    plans = settings(first="0 12 * * *", second="0 12 * * *")
    assert len(tick(plans, store, NOON, "a", start, stop)) == 1
    assert store.fires("second") == []
    assert len(tick(plans, store, NOON, "a", start)) == 1


HOST = """
import sys, time
from datetime import datetime
from types import SimpleNamespace
from results_db import Store
from tuner.scheduler import tick
from tuner.settings import load
from pathlib import Path
settings, _ = load(Path(sys.argv[1]))
host, at = sys.argv[2], float(sys.argv[3])
now = datetime.fromisoformat(sys.argv[4])
def start(name):
    print(name, flush=True)
    return SimpleNamespace(run_id=None, status="finished", summary=host)
with Store.open(settings.database.url) as store:
    time.sleep(max(0.0, at - time.time()))
    tick(settings, store, now, host, start)
"""


@pytest.mark.slow
def test_exactly_once_over_eight_processes_on_one_file(tmp_path):
    config = tmp_path / "config.yaml"
    names = [f"c{number}" for number in range(6)]
    lines = ["version: 1", "database: {url: 'sqlite:///farm.db'}", "campaigns:"]
    plan = "{tasks: [{kernel: softmax}], schedule: {cron: '0 * * * *'}}"
    lines += [f"  {name}: {plan}" for name in names]
    config.write_text("\n".join(lines))
    Store.open(f"sqlite:///{tmp_path / 'farm.db'}").close()
    at = datetime.now(UTC).timestamp() + 6.0
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, str(config), f"host{number}", str(at), NOON.isoformat()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(8)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 8, outputs
    started = sorted(name for out, _ in outputs for name in out.split())
    assert started == names
    with Store.open(f"sqlite:///{tmp_path / 'farm.db'}") as store:
        fires = store.fires(limit=100)
    done = [(fire.schedule, fire.instant) for fire in fires if fire.state == "finished"]
    assert len(done) == len(set(done)) == len(names)


def test_exactly_once_over_threads_with_clocks_a_little_apart(store):
    plans = settings(often="* * * * *", hourly="0 * * * *")
    started: list[str] = []
    barrier = threading.Barrier(8)

    def host(number):
        barrier.wait()
        for step in range(3):
            now = NOON + timedelta(minutes=step, seconds=number - 4)
            tick(plans, store, now, f"h{number}", lambda name: started.append(name) or Ran())

    threads = [threading.Thread(target=host, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = [fire for fire in store.fires(limit=1000) if fire.state == "finished"]
    assert len(finished) == len({(fire.schedule, fire.instant) for fire in finished})
    assert len(finished) == len(started)
    assert started.count("hourly") == 1


def test_serving_outlives_a_database_that_is_away_for_a_moment(tmp_path):
    stop, told, calls = threading.Event(), [], []

    def once(now):
        calls.append(now)
        if len(calls) == 1:
            Store.open(f"sqlite:///{tmp_path / 'no' / 'such.db'}", create=False)
        stop.set()

    serve(once, stop, report=told.append, period_s=0.01)
    assert len(calls) == 2
    assert len(told) == 1
    assert "there is no database" in told[0]
