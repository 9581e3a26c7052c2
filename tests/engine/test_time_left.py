"""The time left: it falls steadily while the rate holds, and is never negative."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engine.time_left import TimeLeft


def watch(each_s: float, total: int, *, start_s: float = 0.0, finals_s: float = 0.0, every_s=0.25):
    """Moments and times left of a run whose trials all take the same time."""
    left, shown, now = TimeLeft(), [], 0.0
    while (done := max(0, int((now - start_s) / each_s))) < total:
        shown.append((now, left.update(now, done, total - done, finals_s)))
        now += every_s
    return [(now, value) for now, value in shown if value is not None]


@given(st.floats(0.3, 20.0), st.integers(16, 300), st.floats(0.0, 100.0), st.floats(0.0, 60.0))
def test_at_a_constant_rate_it_falls_steadily_towards_the_end(each_s, total, start_s, finals_s):
    shown = watch(each_s, total, start_s=start_s, finals_s=finals_s, every_s=each_s / 4)
    assert shown
    assert all(later <= earlier for (_, earlier), (_, later) in pairwise(shown))
    end_s = start_s + each_s * total + finals_s
    for now, value in shown:
        assert value == pytest.approx(end_s - now, rel=0.35, abs=each_s)


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
