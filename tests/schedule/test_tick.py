"""Firing through the real store: exactly once over all hosts, and every outcome is recorded."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from results_db import Store, StoreAwayError, StoreMovedError
from search_spaces.errors import TunerError
from tuner.campaign import lease
from tuner.schedule.ticker import ATTEMPTS, serve, tick
from tuner.settings.sections import Settings

NOON = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)


@dataclass(frozen=True)
class Ran:
    run_id: int | None = None
    status: str = "finished"
    summary: str = "fine"


def settings(grace: str = "1h", **crons: str) -> Settings:
    return Settings.model_validate(
        {
            "campaigns": {
                name: {"tasks": [{"kernel": "softmax"}], "schedule": {"cron": cron, "grace": grace}}
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
        (TunerError("no such kernel", "correct it"), "no such kernel"),
        (ZeroDivisionError("x" * 3), "ZeroDivisionError: xxx"),
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
    assert store.fires("only")[0].state == "interrupted"


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
import sys
from datetime import datetime
from types import SimpleNamespace
from results_db import Store
from tuner.schedule.ticker import tick
from tuner.settings import load
from pathlib import Path
settings, _ = load(Path(sys.argv[1]))
host, now = sys.argv[2], datetime.fromisoformat(sys.argv[3])
def start(name):
    print(name, flush=True)
    return SimpleNamespace(run_id=None, status="finished", summary=host)
with Store.open(settings.database.url) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    tick(settings, store, now, host, start)
"""


def test_exactly_once_over_four_processes_on_one_file(tmp_path):
    config = tmp_path / "config.yaml"
    names = [f"c{number}" for number in range(6)]
    lines = ["version: 1", "database: {url: 'sqlite:///farm.db'}", "campaigns:"]
    plan = "{tasks: [{kernel: softmax}], schedule: {cron: '0 * * * *'}}"
    lines += [f"  {name}: {plan}" for name in names]
    config.write_text("\n".join(lines))
    Store.open(f"sqlite:///{tmp_path / 'farm.db'}").close()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, str(config), f"host{number}", NOON.isoformat()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(4)
    ]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    outputs = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0] * 4, outputs
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
    stop, reports, calls = threading.Event(), [], []

    def once():
        calls.append(1)
        if len(calls) == 1:
            Store.open(f"sqlite:///{tmp_path / 'no' / 'such.db'}", create=False)
        stop.set()

    serve(once, stop, report=reports.append, period_s=0.01)
    assert len(calls) == 2
    assert len(reports) == 1
    assert "there is no database" in reports[0]


def test_serving_ends_with_a_deleted_database(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'farm.db'}") as store:
        tick(settings(), store, NOON, "a", lambda _: Ran())
        (tmp_path / "farm.db").unlink()
        with pytest.raises(StoreMovedError, match="was deleted"):
            serve(
                lambda: tick(settings(), store, NOON, "a", lambda _: Ran()),
                threading.Event(),
                report=pytest.fail,
            )


# -- clocks that are wrong, tickers that are busy ------------------------------------------------
def test_a_tick_of_a_clock_two_years_ahead_silences_nothing(store):
    plans = settings(nightly="0 12 * * *")
    ahead = NOON + timedelta(days=730)
    assert [f.state for f in tick(plans, store, ahead, "wrong", lambda _: Ran())] == ["finished"]
    for day in range(3):
        now = NOON + timedelta(days=day)
        (fire,) = tick(plans, store, now, "right", lambda _: Ran())
        assert fire.instant == now.replace(second=0)
        assert tick(plans, store, now, "right", lambda _: Ran()) == []


def test_what_a_wrong_clock_let_pass_fires_when_its_time_comes(store):
    plans = settings(nightly="0 12 * * *")
    tick(plans, store, NOON, "right", lambda _: Ran())
    tick(plans, store, NOON + timedelta(days=90), "wrong", lambda _: Ran())
    assert len([fire for fire in store.fires(limit=200) if fire.state == "missed"]) == 89
    for day in range(1, 4):
        (fire,) = tick(plans, store, NOON + timedelta(days=day), "right", lambda _: Ran())
        assert (fire.state, fire.instant.day) == ("finished", 1 + day)


def test_all_that_one_tick_finds_due_is_started_however_long_each_takes(store):
    seconds = [0.0]

    def start(_):
        seconds[0] += 600.0
        return Ran()

    plans = settings(grace="5s", first="0 12 * * *", second="0 12 * * *", third="0 12 * * *")
    now = NOON.replace(second=1)
    fires = tick(plans, store, now, "a", start, clock=lambda: seconds[0])
    assert [fire.schedule for fire in fires] == ["first", "second", "third"]
    assert {fire.state for fire in store.fires()} == {"finished"}


def test_what_becomes_due_while_a_tick_is_busy_is_not_late(store):
    seconds = [0.0]

    def start(_):
        seconds[0] += 7200.0
        return Ran()

    plans = settings(grace="5s", long="0 12 * * *", meanwhile="0 13 * * *", often="*/20 12 * * *")
    now = NOON.replace(second=1)
    tick(plans, store, now - timedelta(hours=12), "a", lambda _: Ran())
    fires = tick(plans, store, now, "a", start, clock=lambda: seconds[0])
    assert [(f.schedule, f.instant.hour) for f in fires] == [
        ("long", 12),
        ("often", 12),
        ("meanwhile", 13),
    ]


# -- interrupted firings ---------------------------------------------------------------------------
def test_an_interrupted_run_is_gone_on_with_by_the_next_tick(store):
    plans = settings(nightly="0 12 * * *")
    ends = [Ran(status="interrupted"), StoreAwayError("the server is away"), Ran(summary="done")]
    seen = []

    def start(_):
        end = ends[len(seen)]
        seen.append(end)
        if isinstance(end, Exception):
            raise end
        return end

    later = [NOON + timedelta(minutes=minute) for minute in range(5)]
    states = [[fire.state for fire in tick(plans, store, now, "a", start)] for now in later]
    assert states == [["interrupted"], ["interrupted"], ["finished"], [], []]
    (fire,) = store.fires()
    assert (fire.state, fire.attempts, fire.message) == ("finished", 3, "done")


def test_a_newer_firing_takes_the_place_of_an_interrupted_one(store):
    plans = settings(hourly="0 * * * *")
    tick(plans, store, NOON, "a", lambda _: Ran(status="interrupted"))
    (fire,) = tick(plans, store, NOON + timedelta(hours=1), "a", lambda _: Ran())
    assert fire.instant.hour == 13
    assert tick(plans, store, NOON + timedelta(hours=1), "a", lambda _: Ran()) == []


def test_a_firing_whose_runs_are_always_interrupted_is_given_up(store):
    plans = settings(nightly="0 12 * * *")
    for _ in range(ATTEMPTS):
        assert len(tick(plans, store, NOON, "a", lambda _: Ran(status="interrupted"))) == 1
    assert tick(plans, store, NOON, "a", lambda _: Ran(status="interrupted")) == []
    (fire,) = store.fires()
    assert (fire.state, fire.attempts) == ("failed", ATTEMPTS)
    assert "tuner run nightly" in fire.message


def test_a_run_gone_on_with_by_hand_is_not_started_again(store):
    run = store.begin_run("nightly", "h", 1, {}, {})
    plans = settings(nightly="0 12 * * *")
    tick(plans, store, NOON, "a", lambda _: Ran(run.run_id, "interrupted"))
    by_hand = lease.take(store, store.run(run.run_id))
    assert tick(plans, store, NOON, "a", lambda _: Ran()) == []
    by_hand.finish_run(run.run_id, "finished", {})
    lease.leave(by_hand)
    assert tick(plans, store, NOON, "a", lambda _: Ran()) == []
    (fire,) = store.fires()
    assert (fire.state, fire.run_id, fire.attempts) == ("finished", run.run_id, 1)


@pytest.mark.parametrize("ending", ["alive", "killed", "elsewhere"])
def test_the_firing_of_a_ticker_that_died_is_gone_on_with(store, ending):
    """Only of one that has provably died: what is at work, or cannot be seen, is left alone."""
    plans = settings(nightly="0 12 * * *")
    code = "from tuner.campaign import lease\nprint(lease.process_identity(), flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ticker:
        process = ticker.stdout.readline().strip()
        process = "another-boot 1 2 3" if ending == "elsewhere" else process
        assert store.claim_fire("nightly", NOON.replace(second=0), "b", process, NOON)
        if ending == "killed":
            ticker.kill()
            ticker.wait()
        fires = tick(plans, store, NOON, "a", lambda _: Ran())
        if ending != "killed":
            ticker.communicate("\n")
    assert [fire.state for fire in fires] == (["finished"] if ending == "killed" else [])
    (fire,) = store.fires()
    assert (fire.state, fire.host) == (
        ("finished", "a") if ending == "killed" else ("started", "b")
    )
