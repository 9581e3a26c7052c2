"""Cards that drift, from simulated nights of a fleet; `benchmarks/card_nights.py` makes them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.card_nights import DRIFTING, RESULTS, follow, make_nights
from results_db.card_health import find_outliers, list_card_runs
from results_db.promotion_records import CardTime

NOISE = json.loads((RESULTS / "cpu/card_nights.json").read_text())["noise"]
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def one_card(nights, *, us=lambda night: 50.0, clocks=lambda night: {"copy_tb_s": 4.3}):
    """The times of one card without noise, of four tasks a night."""
    return [
        CardTime(
            night, "card", "NVIDIA H200", (f"task {task}", "eager"),
            us(night) * (1 + task), clocks(night), NOON + timedelta(days=night),
        )
        for night in range(1, nights + 1)
        for task in range(4)
    ]  # fmt: skip


def outliers(times, run_id, **more):
    return find_outliers(list_card_runs(times, **more), run_id)


def test_a_drift_of_2_percent_is_found_by_the_second_night_and_no_healthy_card_goes():
    found = follow(make_nights(7, NOISE))
    assert found.keys() == DRIFTING.keys()
    assert all(found[card] <= begin + 1 for card, begin in DRIFTING.items())


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8, 16))
def test_other_fleets(seed):
    found = follow(make_nights(seed, NOISE))
    assert all(found[card] <= begin + 1 for card, begin in DRIFTING.items())
    assert len(found) <= len(DRIFTING) + 1


@pytest.mark.parametrize("factor", [1.03, 1 / 1.03])
def test_two_nights_in_a_row_and_the_reason(factor):
    times = one_card(6, us=lambda night: 50 * factor if night in (4, 6) else 50.0)
    assert [outliers(times, night) for night in range(1, 7)] == [[]] * 6
    times = one_card(6, us=lambda night: 50 * factor if night >= 5 else 50.0)
    assert outliers(times, 5) == []
    (found,) = outliers(times, 6)
    assert found.runs == (5, 6)
    word = "slower" if factor > 1 else "faster"
    assert found.reason == f"3.0% {word} than in its earlier runs (times of two runs)"


@pytest.mark.parametrize("factor", [0.97, 0.96, 1.04])
def test_one_night_of_other_copies_is_not_two(factor):
    times = one_card(6, clocks=lambda night: {"copy_tb_s": 4.3 * (factor if night == 5 else 1)})
    assert [outliers(times, night) for night in (5, 6)] == [[], []]


def test_copies_alone_show_a_drift():
    times = one_card(6, clocks=lambda night: {"copy_tb_s": 4.3 * (0.98 if night >= 5 else 1)})
    (found,) = outliers(times, 6)
    assert found.reason == "2.0% slower than in its earlier runs (copies of two runs)"


@pytest.mark.parametrize(("apart", "goes"), [(0.01, False), (0.08, True)])
def test_passes_whose_times_scatter(apart, goes):
    """Two baselines of each pass, which move against each other on the fifth night."""
    eager = one_card(5)
    other = [
        replace(
            each,
            what=(each.what[0], "vendor"),
            us=each.us * (1 + apart * (each.run_id == 5)),
        )
        for each in eager
    ]
    found = outliers([*eager, *other], 5)
    assert [each.runs for each in found] == [(5, 5)] * goes
    assert all(each.reason.startswith("times of one pass scatter by ") for each in found)


@pytest.mark.parametrize(
    ("clocks", "reason"),
    [
        ({"memory_errors": 2.0}, "2 errors of its memory were not corrected"),
        ({"throttled": "hw_slowdown"}, "throttling voided 4 of 4 confirmations"),
        ({"copy_tb_s": 3.9}, "10.3% slower than in its earlier runs (copies)"),
    ],
)
def test_a_fault_needs_one_night(clocks, reason):
    times = one_card(5, clocks=lambda night: clocks if night == 5 else {"copy_tb_s": 4.3})
    assert [each.reason for each in outliers(times, 5)] == [reason]
    assert outliers(times, 4) == []


def test_short_baselines_and_new_work_say_nothing():
    times = one_card(6, us=lambda night: 2.0 if night < 5 else 3.0)
    assert outliers(times, 6) == []
    new = [replace(each, what=("new", "eager"), us=9e9) for each in one_card(6)]
    assert outliers([*one_card(6), *new[-4:]], 6) == []


def test_what_all_cards_have_in_common_is_no_drift():
    times = [
        replace(each, card=f"card {number}")
        for number in range(6)
        for each in one_card(6, us=lambda night: 52.0 if night >= 5 else 50.0)
    ]
    assert outliers(times, 6) == []


def test_an_admitted_card_begins_anew():
    times = one_card(10, us=lambda night: 52.0 if night >= 5 else 50.0)
    assert outliers(times, 6) != []
    admitted = {"card": NOON + timedelta(days=6, hours=1)}
    assert [outliers(times, night, admitted=admitted) for night in (9, 10)] == [[], []]


def test_the_output_is_of_the_script():
    facts = json.loads((Path(RESULTS) / "cpu/card_nights.json").read_text())
    assert facts["found_by_the_second_night"] == facts["drifting_cards"] == 90
    assert facts["healthy_in_quarantine"] / facts["healthy_card_nights"] < 1 / 1000
