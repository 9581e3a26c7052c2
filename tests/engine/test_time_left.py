"""The time left: it falls steadily while the rate holds, and is never negative."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engine.finals_time import TimeLeft


def watch(each_s: float, total: int, looks: float, *, start: int = 0, finals_s: float = 0.0):
    """The true time left and what is shown, of a run whose trials all take the same time.

    looks: per trial, at equal distances. start: looks before the first trial begins.
    """
    left, shown, look = TimeLeft(), [], 0
    end_s = each_s * (start / looks + total) + finals_s
    while (done := max(0, int((look - start) / looks))) < total:
        now = each_s * look / looks
        shown.append((end_s - now, left.update(now, done, total - done, finals_s)))
        look += 1
    known = [(true_s, value) for true_s, value in shown if value is not None]
    assert known
    return known


each, total, start = st.floats(0.3, 20.0), st.integers(16, 300), st.integers(0, 100)
finals = st.floats(0.0, 60.0)


@given(each, total, st.integers(1, 8), start, finals)
def test_at_a_constant_rate_it_falls_steadily_towards_the_end(each_s, total, looks, start, finals):
    """It exceeds the true time by less than the trial that runs: of that, nothing is known yet."""
    known = watch(each_s, total, looks, start=start, finals_s=finals)
    assert all(later <= earlier for (_, earlier), (_, later) in pairwise(known))
    for true_s, value in known:
        assert -1e-6 * each_s <= value - true_s <= each_s * (1 + 1e-6)


@given(each, total, st.floats(1.0, 8.0), start, finals)
def test_ends_of_trials_that_are_seen_late_mislead_by_that_much(
    each_s, total, looks, start, finals
):
    """The rate is known from three trials on, each end of which is seen up to a look late."""
    late_s = each_s / looks
    for true_s, value in watch(each_s, total, looks, start=start, finals_s=finals):
        assert -total * late_s / 3 <= value - true_s <= each_s + total * late_s / 3


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 100.0),
            st.integers(0, 20),
            st.none() | st.integers(0, 1000),
            st.floats(0.0, 1000.0),
        )
    )
)
def test_it_is_never_negative(steps):
    left, now, done = TimeLeft(), 0.0, 0
    for passed_s, more, planned, finals_s in steps:
        now, done = now + passed_s, done + more
        value = left.update(now, done, planned, finals_s)
        assert value is None or value >= 0.0


def test_a_plan_that_shrinks_is_followed_without_a_jump():
    left, shown = TimeLeft(), []
    for second in range(400):
        total = 1000 if second < 100 else 500
        shown.append(left.update(float(second), second, total - second, 0.0))
    known = [value for value in shown if value is not None]
    assert known[80] == pytest.approx(1000 - 80 - 4, rel=0.05)
    assert all(earlier - later < 25 for earlier, later in pairwise(known))
    assert known[-1] == pytest.approx(100, rel=0.05)


def test_starting_workers_has_no_part_in_it():
    left = TimeLeft()
    assert left.update(0.0, 0, 20, 2.0) is None
    assert left.update(60.0, 1, 19, 2.0) is None
    assert left.update(64.0, 5, 15, 2.0) == pytest.approx(15 * 1.0 + 2.0)


def test_it_ends_with_the_run():
    left = TimeLeft()
    for second in range(10):
        left.update(float(second), second, 9 - second, 30.0)
    assert left.update(10.0, 9, 0, 30.0) > 25.0
    assert left.update(11.0, 9, 0, 0.0) == 0.0
