"""What becomes of a winner, from the rows of one pass: laws over made-up rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio
from tuner.compare import BenchRow
from tuner.compare.entry_check import Result, judge

MARGIN = 0.05
WINNER_US = 100.0
FAILURES = [status for status in Status if status is not Status.CORRECT]


def row(
    name: str, ratio: float, spread: float = 0.002, status: Status = Status.CORRECT
) -> BenchRow:
    """A row as `tuner bench` makes it: its time over the winner's, with an interval."""
    if status is not Status.CORRECT:
        return BenchRow(name, "config", {"n": name}, status, message=f"{name} failed")
    middle = math.log(ratio)
    over = LogRatio(middle, middle - spread, middle + spread)
    time_us = WINNER_US * ratio
    word = "" if name == "winner" else over.verdict()
    samples = (time_us,) * 16
    return BenchRow(
        name, "config", {"n": name}, median_us=time_us, log_ratio=over, verdict=word,
        samples_us=samples,
    )  # fmt: skip


ratios = st.lists(st.floats(0.5, 2.0), max_size=5)
spreads = st.floats(0.0, 0.1)


@given(ratios, spreads)
def test_a_winner_flips_exactly_if_a_rival_is_faster_beyond_doubt(others, spread):
    rivals = [row(f"r{at}", ratio, spread) for at, ratio in enumerate(others)]
    found = judge([row("winner", 1.0), *rivals], WINNER_US)
    ahead = [
        each.log_ratio
        for each in rivals
        if each.log_ratio.ratio < 1 / 1.01 and each.log_ratio.high < 0
    ]
    assert (found.result is Result.FLIPPED) == bool(ahead)
    if ahead:
        assert found.better.log_ratio.value == min(each.value for each in ahead)
    else:
        assert found.better is None


@given(ratios, spreads, st.permutations(range(5)))
def test_the_order_of_the_rivals_does_not_matter(others, spread, order):
    rivals = [row(f"r{at}", ratio, spread) for at, ratio in enumerate(others)]
    moved = [rivals[at] for at in order if at < len(rivals)]
    winner = row("winner", 1.0)
    first, second = (judge([winner, *each], WINNER_US) for each in (rivals, moved))
    assert first.result is second.result


@given(st.floats(0.3, 3.0))
def test_the_change_since_the_table_has_a_margin_on_both_sides(factor):
    found = judge([row("winner", 1.0)], WINNER_US / factor).result
    # Close to a margin, rounding decides.
    if factor > 1 + MARGIN + 1e-6:
        assert found is Result.SLOWER
    elif factor < 1 - MARGIN - 1e-6:
        assert found is Result.FASTER
    elif 1 - MARGIN + 1e-6 < factor < 1 + MARGIN - 1e-6:
        assert found is Result.SAME


def test_without_a_stored_time_a_winner_that_leads_is_the_same():
    assert judge([row("winner", 1.0)], None).result is Result.SAME


@pytest.mark.parametrize("status", FAILURES)
def test_a_winner_that_fails_is_replaced_by_the_fastest_that_works(status):
    rows = [
        row("winner", 1.0, status=status),
        row("slow", 1.5),
        row("broken", 1.0, status=Status.RUNTIME),
        row("fast", 0.9),
    ]
    found = judge(rows, WINNER_US)
    expected = {
        Status.COMPILE: Result.NO_LONGER_BUILDS,
        Status.CONSTRAINTS: Result.NO_LONGER_BUILDS,
        Status.CORRECTNESS: Result.WRONG,
    }
    assert found.result is expected.get(status, Result.FAILS)
    assert found.better.variant == "fast"
    assert "winner failed" in found.note
    assert "broken: runtime" in found.note
