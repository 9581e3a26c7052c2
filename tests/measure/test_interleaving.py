"""The order and number of runs in a comparison, with the CPU's timer."""

from __future__ import annotations

import itertools
import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from timer_contract import StillTeam

from workers.measure.race.samples import rotated_orders
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate, WarmUp


def _busy(us):
    def run():
        end = time.perf_counter_ns() + us * 1000
        while time.perf_counter_ns() < end:
            pass
        return us

    return run


def _timer():
    return PerfCounterTimer(0.0, WarmUp(), team=StillTeam())


@given(st.integers(1, 9), st.integers(0, 50))
def test_rotated_orders_are_balanced(count, first):
    orders = rotated_orders(count, 2 * count, first - first % 2)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for position in range(count):
        seen = Counter(order[position] for order in orders)
        assert set(seen.values()) == {2}
    follows = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert all(follows[a, b] == follows[b, a] for a, b in follows)


def test_every_pass_times_every_candidate():
    field = [Candidate(name, _busy(50)) for name in "ABC"]
    samples = _timer().collect(field, rotated_orders(3, 6))
    assert [len(row) for row in samples] == [6, 6, 6]
    assert all(time_us >= 50 for row in samples for time_us in row)


def test_batches_reach_the_minimum_duration_and_samples_are_per_call():
    calls = 0

    def run():
        nonlocal calls
        calls += 1
        return _busy(20)()

    timer = PerfCounterTimer(500.0, WarmUp(), team=StillTeam())
    (samples,) = timer.collect([Candidate("A", run)], rotated_orders(1, 4))
    assert calls >= 4 * 10
    assert all(time_us >= 20 for time_us in samples)


def test_a_warm_device_is_not_warmed_again(monkeypatch):
    warm_up = WarmUp()
    calls = []
    warm_up.run(lambda: calls.append(time.sleep(0.002)), 10.0)
    first = len(calls)
    monkeypatch.setattr("workers.measure.timers.timer._IDLE_S", 200.0)  # on any machine
    warm_up.run(lambda: calls.append(None), 10.0)
    assert first >= 1
    assert len(calls) == first
