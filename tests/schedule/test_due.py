"""The arithmetic of schedules: properties for any clock, and changes of daylight saving."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.schedule.due import MISSED_ON_RECORD, Schedule, ScheduleError, check, due, next_fires

BERLIN = ZoneInfo("Europe/Berlin")
CRONS = (
    "* * * * *",
    "*/15 * * * *",
    "0 2 * * *",
    "30 2 * * *",
    "59 23 31 * *",
    "0 0 29 2 *",
    "0 6 * * 1-5",
    "15 */2 * * *",
    "0 0 1 1 *",
    "@daily",
)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")

plans = st.builds(
    Schedule,
    name=st.just("s"),
    cron=st.sampled_from(CRONS),
    timezone=st.sampled_from(ZONES),
    grace_s=st.floats(1.0, 200_000.0),
)
quarterly = plans.filter(lambda plan: plan.cron != "* * * * *")
instants = st.datetimes(datetime(2023, 1, 1), datetime(2031, 1, 1), timezones=st.just(UTC))
steps = st.lists(st.floats(-90_000.0, 400_000.0), min_size=1, max_size=12)


def fired(plan, now, last=None):
    found = due([plan], {} if last is None else {plan.name: last}, now)
    return found[0] if found else None


@given(plans, instants, steps)
def test_no_instant_is_settled_twice_whatever_the_clock_does(plan, now, moves):
    settled: list[datetime] = []
    for move in moves:
        last = max(settled, default=None)
        found = fired(plan, now, last)
        if found is not None:
            new = [*found.missed, *([found.instant] if found.instant else [])]
            assert new == sorted(new)
            assert all(instant <= now for instant in new)
            assert last is None or all(instant > last for instant in new)
            settled += new
        assert fired(plan, now, max(settled, default=now)) is None
        now += timedelta(seconds=move)
    assert len(settled) == len(set(settled))


@settings(max_examples=40)
@given(quarterly, instants, st.floats(0.0, 1_000_000.0))
def test_what_was_announced_is_what_is_due(plan, start, elapsed_s):
    """Looking back over a window finds what looking forward from its beginning announced."""
    now = start + timedelta(seconds=elapsed_s)
    found = fired(plan, now, start)
    settled = [] if found is None else [*found.missed, *filter(None, [found.instant])]
    announced = []
    for instant in next_fires(plan, start, 1_200):
        if instant > now:
            break
        announced.append(instant)
    assert settled == announced[-(MISSED_ON_RECORD + 1) :]


@given(plans, instants, st.floats(0.0, 3_000_000.0))
def test_only_the_newest_fires_and_only_within_its_grace(plan, start, elapsed_s):
    now = start + timedelta(seconds=elapsed_s)
    found = fired(plan, now, start)
    if found is None:
        return
    if found.instant is not None:
        assert (now - found.instant).total_seconds() <= plan.grace_s
        assert all(instant < found.instant for instant in found.missed)
    else:
        assert found.missed
        assert (now - found.missed[-1]).total_seconds() > plan.grace_s


def test_a_time_that_the_spring_gap_swallows_fires_at_its_end_once():
    plan = Schedule("s", "30 2 * * *", "Europe/Berlin")
    found = next_fires(plan, datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert found == [
        datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN).astimezone(UTC),
        datetime(2026, 3, 30, 2, 30, tzinfo=BERLIN).astimezone(UTC),
    ]
    assert found[0] == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def test_a_time_that_autumn_repeats_fires_once_when_its_hour_is_fixed():
    plan = Schedule("s", "30 2 * * *", "Europe/Berlin")
    found = next_fires(plan, datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    assert found == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]


def test_an_hourly_line_fires_in_both_of_the_repeated_hours():
    plan = Schedule("s", "30 * * * *", "Europe/Berlin")
    found = next_fires(plan, datetime(2026, 10, 25, 0, 0, tzinfo=UTC), 3)
    assert found == [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]


@pytest.mark.parametrize(
    "cron", ["*/20 * * * *", "*/7 1-4 * * 0", "*/20 3-3 * * 0", "22-40 * * * *"]
)
@pytest.mark.parametrize(
    "start", [datetime(2024, 4, 6, 13, tzinfo=UTC), datetime(2024, 10, 5, 13, tzinfo=UTC)]
)
def test_half_an_hour_that_is_repeated_or_skipped_is_announced_as_it_is_due(cron, start):
    plan, ends = Schedule("s", cron, "Australia/Lord_Howe", 4 * 3600), start + timedelta(hours=4)
    announced = [each for each in next_fires(plan, start, 100) if each <= ends]
    (found,) = due([plan], {"s": start}, ends)
    assert [*found.missed, found.instant] == announced


def test_month_ends():
    plan = Schedule("s", "0 0 31 * *")
    months = [each.month for each in next_fires(plan, datetime(2026, 1, 1, tzinfo=UTC), 7)]
    assert months == [1, 3, 5, 7, 8, 10, 12]
    leap = Schedule("s", "0 0 29 2 *")
    years = [each.year for each in next_fires(leap, datetime(2026, 1, 1, tzinfo=UTC), 2)]
    assert years == [2028, 2032]


def test_sunday_is_zero_and_seven():
    for day in ("0", "7", "sun"):
        found = next_fires(Schedule("s", f"0 2 * * {day}"), datetime(2026, 11, 20, tzinfo=UTC))
        assert found == [datetime(2026, 11, 22, 2, tzinfo=UTC)]


def test_a_first_look_goes_back_one_grace_period():
    plan = Schedule("s", "0 2 * * *", grace_s=3600)
    seen = fired(plan, datetime(2026, 5, 1, 2, 30, tzinfo=UTC))
    assert seen is not None
    assert seen.instant == datetime(2026, 5, 1, 2, tzinfo=UTC)
    assert fired(plan, datetime(2026, 5, 1, 14, 0, tzinfo=UTC)) is None


def test_a_year_of_missed_minutes_leaves_a_bounded_record():
    plan = Schedule("s", "* * * * *")
    now = datetime(2026, 5, 1, tzinfo=UTC)
    found = fired(plan, now, now - timedelta(days=365))
    assert found is not None
    assert found.instant == now
    assert len(found.missed) == MISSED_ON_RECORD


def test_one_that_is_switched_off_is_never_due():
    plan = Schedule("s", "* * * * *", enabled=False)
    assert fired(plan, datetime(2026, 5, 1, tzinfo=UTC)) is None
    assert next_fires(plan, datetime(2026, 5, 1, tzinfo=UTC)) == []


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("0 0 31 2 *", "UTC", "never fires"),
        ("0 0 30 2 *", "UTC", "never fires"),
        ("* * * * * *", "UTC", "has 6 fields"),
        ("0 2 * *", "UTC", "has 4 fields"),
        ("", "UTC", "has 0 fields"),
        ("@reboot", "UTC", "has 1 fields"),
        ("61 * * * *", "UTC", "not a cron line"),
        ("*/0 * * * *", "UTC", "not a cron line"),
        ("R * * * *", "UTC", "differ from host to host"),
        ("H 2 * * *", "UTC", "differ from host to host"),
        ("a b c d e", "UTC", "not a cron line"),
        ("0 2 * * *", "Mars/Olympus", "unknown time zone"),
        ("0 2 * * *", "../../etc/passwd", "unknown time zone"),
        ("0 2 * * *", "Europe", "unknown time zone"),
        ("0 2 * * *", "", "unknown time zone"),
        ("0 2 * * *", "a\0b", "unknown time zone"),
    ],
)
def test_what_cannot_be_used_says_why(cron, zone, words):
    with pytest.raises(ScheduleError, match=words):
        check(cron, zone)


@given(st.text(max_size=20), st.text(max_size=20))
def test_hostile_text_is_refused_or_works_and_never_crashes(cron, zone):
    with contextlib.suppress(ScheduleError):
        check(cron, zone)
