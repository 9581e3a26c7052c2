"""Blackouts, jitter and catching up: laws for any clock, and what windows mean."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results_db import Store
from tuner.schedule.blackout import read_window
from tuner.schedule.due import PROMPT_S, Schedule, due, next_fires
from tuner.schedule.ticker import list_lags, tick
from tuner.settings.sections import Settings

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
MINUTE = timedelta(minutes=1)


def is_weekend(local: datetime) -> bool:
    day, at = local.weekday(), local.time()
    return (day == 4 and at >= time(18)) or day in (5, 6) or (day == 0 and at < time(6))


#: Windows, and whether a local time is inside, said in another way.
WINDOWS = {
    "Fri 18:00..Mon 06:00": is_weekend,
    "tue..Wed": lambda local: local.weekday() in (1, 2),
    "22:30..01:00": lambda local: local.time() >= time(22, 30) or local.time() < time(1),
    "01:30..02:45": lambda local: time(1, 30) <= local.time() < time(2, 45),
    "2026-10-24..2026-10-26": lambda local: (
        local.date().isoformat() in ("2026-10-24", "2026-10-25", "2026-10-26")
    ),
    "2026-03-28 12:00..2026-03-29 03:00": lambda local: (
        datetime(2026, 3, 28, 12) <= local < datetime(2026, 3, 29, 3)
    ),
}


def is_dark(plan: Schedule, now: datetime) -> bool:
    local = now.astimezone(ZoneInfo(plan.timezone)).replace(tzinfo=None)
    return any(WINDOWS[text](local) for text in plan.blackout)


plans = st.builds(
    Schedule,
    name=st.sampled_from(("nightly", "weekly")),
    cron=st.sampled_from(
        ("0 2 * * *", "30 2 * * *", "0 */3 * * *", "0 0,18 * * 1-5", "45 23 * * *")
    ),
    timezone=st.sampled_from(ZONES),
    grace_s=st.floats(60.0, 100_000.0),
    blackout=st.lists(st.sampled_from(sorted(WINDOWS)), max_size=3).map(tuple),
    jitter_s=st.floats(0.0, 7200.0),
    catch_up=st.sampled_from(("newest", "none")),
)
#: Days around both changes of Berlin's clocks and that of Lord Howe, and others.
instants = st.one_of(
    st.datetimes(datetime(2026, 3, 26), datetime(2026, 4, 7), timezones=st.just(UTC)),
    st.datetimes(datetime(2026, 10, 1), datetime(2026, 10, 27), timezones=st.just(UTC)),
)


@given(instants, st.sampled_from(ZONES), st.sampled_from(sorted(WINDOWS)))
def test_a_window_covers_what_the_clock_on_the_wall_shows(now, zone, text):
    plan = Schedule("s", "0 2 * * *", zone, blackout=(text,))
    assert plan.is_dark(now) == is_dark(plan, now)


@given(plans, instants, st.lists(st.floats(-90_000.0, 200_000.0), min_size=1, max_size=12))
def test_no_firing_starts_in_a_blackout_or_twice_whatever_the_clock_does(plan, now, moves):
    settled: list[datetime] = []
    for move in moves:
        last = {plan.name: max(settled)} if settled else {}
        for found in due([plan], last, now):
            new = [*found.missed, *filter(None, [found.instant])]
            assert new == sorted(new)
            assert not set(new) & set(settled)
            settled += new
            if found.instant is None:
                continue
            start = plan.find_start(found.instant)
            assert not is_dark(plan, now)
            assert timedelta(0) <= now - start <= timedelta(seconds=plan.grace_s)
            if plan.catch_up == "none":
                assert not is_dark(plan, start)
                assert now - start <= timedelta(seconds=PROMPT_S)
        now += timedelta(seconds=move)


@settings(max_examples=25, deadline=None)
@given(plans, instants, st.integers(1, 3))
def test_with_a_tick_each_minute_every_firing_outside_blackouts_starts_once(plan, start, days):
    now = start.replace(second=0, microsecond=0)
    end = now + timedelta(days=days)
    announced = list(takewhile(lambda each: each < end, next_fires(plan, now, 100)))
    last, started = {plan.name: now}, {}
    while now < end + timedelta(hours=2):
        for found in due([plan], last, now):
            last[plan.name] = found.instant or found.missed[-1]
            if found.instant:
                started[found.instant] = now
        now += MINUTE
    for each in announced:
        at = plan.find_start(each)
        first = at + (datetime.min.replace(tzinfo=UTC) - at) % MINUTE
        if not is_dark(plan, first):  # a blackout begins at a full minute, where a tick is
            assert started.pop(each) == first
    # What is left waited for the end of a blackout, or came after the end.
    left = [each for each in started if each < end and not is_dark(plan, plan.find_start(each))]
    assert plan.catch_up == "newest" or not left


@given(plans, instants)
def test_the_delay_is_below_the_jitter_and_equal_for_equal_names(plan, instant):
    delay = plan.find_start(instant) - instant
    assert timedelta(0) <= delay
    assert delay.total_seconds() < plan.jitter_s or delay == timedelta(0)
    other = Schedule(plan.name, "0 0 * * *", grace_s=1.0, jitter_s=plan.jitter_s)
    assert other.find_start(instant.astimezone(ZoneInfo("Asia/Kathmandu"))) == instant + delay


def test_the_delay_is_the_same_on_every_host_and_spread():
    instant = datetime(2026, 5, 1, 2, tzinfo=UTC)
    delays = [
        (Schedule(f"s{n}", "0 2 * * *", jitter_s=600.0).find_start(instant) - instant).seconds
        for n in range(4)
    ]
    assert delays == [383, 504, 262, 566]
    all_delays = [
        (Schedule("s", "", jitter_s=600.0).find_start(at) - at).total_seconds()
        for at in (instant + timedelta(days=n) for n in range(300))
    ]
    assert min(all_delays) < 30
    assert max(all_delays) > 570


def test_what_a_blackout_held_back_starts_at_its_end_or_never():
    night = {"blackout": ("01:00..03:00",), "grace_s": 7200.0}
    two, last = datetime(2026, 5, 1, 2, tzinfo=UTC), {"s": datetime(2026, 4, 30, 2, tzinfo=UTC)}
    newest = Schedule("s", "0 2 * * *", **night)
    assert due([newest], last, two) == due([newest], last, two + 59 * MINUTE) == []
    (found,) = due([newest], last, two + 60 * MINUTE)
    assert (found.instant, found.missed) == (two, ())
    (found,) = due([newest], last, two + 121 * MINUTE)
    assert (found.instant, found.missed) == (None, (two,))
    none = Schedule("s", "0 2 * * *", **night, catch_up="none")
    (found,) = due([none], last, two)
    assert (found.instant, found.missed) == (None, (two,))
    # Just before the end, with a tick just behind it.
    none = Schedule("s", "59 2 * * *", **night, catch_up="none")
    (found,) = due([none], {"s": two}, two + 60 * MINUTE)
    assert (found.instant, found.missed) == (None, (two + 59 * MINUTE,))


def test_an_hour_that_autumn_repeats_is_dark_twice_and_spring_ends_a_window_on_time():
    plan = Schedule("s", "0 2 * * *", "Europe/Berlin", blackout=("02:00..03:00",))
    dark = [
        plan.is_dark(datetime(2026, 10, 24, 23, 30, tzinfo=UTC) + n * 30 * MINUTE) for n in range(6)
    ]
    assert dark == [False, True, True, True, True, False]
    spring = Schedule("s", "0 2 * * *", "Europe/Berlin", blackout=("Sat 18:00..Sun 03:00",))
    assert spring.is_dark(datetime(2026, 3, 29, 0, 59, tzinfo=UTC))
    assert not spring.is_dark(datetime(2026, 3, 29, 1, 0, tzinfo=UTC))


@pytest.mark.parametrize(
    "text",
    ["", "..", "Fri 18:00", "Fri 18:00..", "Fri..2026-12-24", "Fri..06:00", "Fri 25:00..Mon 06:00",
     "Fri 18:60..Mon 06:00", "Fri18:00..Mon 06:00", "Frx..Mon", "2026-02-30..2026-03-01",
     "2026-12-26..2026-12-24", "08:00..08:00", "Mon..Sun", "Fri 18:00...Mon 06:00",
     "24:30..06:00", "\u0661\u0662:00..06:00"],
)  # fmt: skip
def test_what_is_no_window_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read_window(text)


# -- ticks -----------------------------------------------------------------------------------------
class Ran:
    run_id, status, summary = None, "finished", "fine"


def make_settings(**schedule) -> Settings:
    plan = {"cron": "0 17 * * *", "grace": "20h", "blackout": ["18:00..06:00"], **schedule}
    task = {"tasks": [{"kernel": "softmax"}], "schedule": plan}
    return Settings.model_validate({"campaigns": {"first": task, "second": task}})


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'farm.db'}") as opened:
        yield opened


@pytest.mark.parametrize(("catch_up", "state"), [("newest", "finished"), ("none", "missed")])
def test_a_firing_whose_turn_comes_in_a_blackout_does_not_start(store, catch_up, state):
    plans, five = make_settings(catch_up=catch_up), datetime(2026, 5, 1, 17, tzinfo=UTC)
    elapsed = [0.0]

    def start(name):
        elapsed[0] += 7200.0
        return Ran()

    fires = tick(plans, store, five, "a", start, clock=lambda: elapsed[0])
    assert [fire.schedule for fire in fires] == ["first"]
    for hours in (2, 12):
        tick(plans, store, five + timedelta(hours=hours), "a", lambda name: Ran())
        assert store.last_fire("second") is None or store.last_fire("second").state == "missed"
    assert list_lags(plans, store, five + timedelta(hours=12))["second"] == 0
    tick(plans, store, five + timedelta(hours=13), "a", lambda name: Ran())
    assert store.last_fire("second").state == state


def test_an_interrupted_run_is_resumed_after_the_blackout(store):
    plans, five = make_settings(), datetime(2026, 5, 1, 17, tzinfo=UTC)
    broken = type("Broken", (Ran,), {"status": "interrupted"})
    assert len(tick(plans, store, five, "a", lambda name: broken())) == 2
    assert tick(plans, store, five + timedelta(hours=2), "a", lambda name: Ran()) == []
    resumed = tick(plans, store, five + timedelta(hours=13), "a", lambda name: Ran())
    assert [(fire.schedule, fire.attempts) for fire in resumed] == [("first", 2), ("second", 2)]


def test_jitter_delays_the_start_and_not_the_record(store):
    plans = make_settings(jitter="30m")
    five = datetime(2026, 5, 1, 17, tzinfo=UTC)
    started = {}
    for minute in range(30):
        now = five + minute * MINUTE
        for fire in tick(plans, store, now, "a", lambda name: Ran()):
            started[fire.schedule] = minute
    assert sorted(started) == ["first", "second"]
    assert started["first"] != started["second"]
    assert {fire.instant for fire in store.fires()} == {five}
