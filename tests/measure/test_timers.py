"""The order of timed runs, the choice of a timer, CUPTI's records, and the CPU's timer."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timer_contract import Log, StillTeam, TimerContract

from search_spaces.errors import TunerError
from workers.job_records import Calibration
from workers.measure.timers.cupti import MARKER, Activity, CuptiFailed, CuptiTimer, runs_of
from workers.measure.timers.events import EventTimer
from workers.measure.timers.graph import CaptureFailed, GraphTimer
from workers.measure.timers.methods import METHODS, choose_method, gpu_timer
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.slots import Slot, by_candidate, chunks, plan_slots
from workers.measure.timers.thread_team import ThreadTeam
from workers.measure.timers.timer import Candidate, WarmUp

ORDERS = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=12)


def _nothing():
    return None


def _field(copies=0):
    return [
        Candidate(name, lambda: None, rotations=tuple(lambda: None for _ in range(copies)))
        for name in "ABCDE"
    ]


def _wait(us):
    end = time.perf_counter_ns() + us * 1000
    while time.perf_counter_ns() < end:
        pass


class TestPerfCounterTimer(TimerContract):
    def timer(self, cache="warm"):
        return PerfCounterTimer(0.0, WarmUp(), cache=cache, team=StillTeam())

    def work(self):
        _wait(2.0)


def test_the_calls_of_a_batch_rotate_over_the_copies():
    log = Log(lambda: time.sleep(0.001))
    timer = PerfCounterTimer(6000.0, WarmUp(), cache="rotate", team=StillTeam())
    timer.collect(log.field("A", copies=3), [[0]])
    used = [copy for _, copy in log.ran]
    assert len(used) >= 4 + 4
    # After sizing the batch, from copy 0 on, and never the same twice in a row.
    assert all(after == (before + 1) % 3 for before, after in itertools.pairwise(used[4:]))


class GivenClock:
    """In place of the module `time`: a clock that only `wait` moves."""

    def __init__(self) -> None:
        self._now_ns = 0

    def perf_counter_ns(self) -> int:
        return self._now_ns

    def wait(self, us: float) -> None:
        self._now_ns += int(us * 1000)


@pytest.fixture
def clock(monkeypatch) -> GivenClock:
    given = GivenClock()
    monkeypatch.setattr("workers.measure.timers.perf_counter.time", given)
    return given


def test_equal_candidates_are_timed_in_equal_batches(clock):
    """In batches of two and of four calls one product differs from itself by 3 %."""
    calls = Counter()

    def call(name, first_us):
        calls[name] += 1
        clock.wait(first_us if calls[name] <= 4 else 300.0)

    slow_at_first = Candidate("A", lambda: call("A", 900.0))
    alike = Candidate("B", lambda: call("B", 300.0))
    hopeless = Candidate("C", lambda: call("C", 9000.0))
    timer = PerfCounterTimer(6000.0, WarmUp(), team=StillTeam())
    timer.collect([slow_at_first, alike, hopeless], [[0, 1, 2]])
    assert calls["A"] == calls["B"] > 2 * calls["C"]


def test_the_overhead_is_subtracted_down_to_a_minimum(clock):
    busy = Candidate("A", lambda: clock.wait(500.0))
    (plain,) = PerfCounterTimer(0.0, WarmUp(), team=StillTeam()).collect([busy], [[0]] * 3)
    (some,) = PerfCounterTimer(0.0, WarmUp(), overhead_us=100.0, team=StillTeam()).collect(
        [busy], [[0]] * 3
    )
    (less,) = PerfCounterTimer(0.0, WarmUp(), overhead_us=1e9, team=StillTeam()).collect(
        [busy], [[0]] * 3
    )
    assert (plain, some) == ([500.0] * 3, [400.0] * 3)
    assert all(0 < time_us < 1 for time_us in less)


class WaitingTeam(ThreadTeam):
    """Threads that wait as often as a test says."""

    def __init__(self, clock: GivenClock, waits: Iterator[bool]) -> None:
        super().__init__()
        self.calls = 0
        self._clock, self._script, self._total_us = clock, waits, 0.0

    def enter(self) -> None:
        """Bind nothing."""

    def waited_us(self) -> float:
        return self._total_us

    def call(self) -> None:
        self.calls += 1
        self._clock.wait(500.0)
        if next(self._script):
            self._clock.wait(3000.0)
            self._total_us += 3000.0


def test_a_batch_whose_threads_waited_is_timed_again(clock):
    team = WaitingTeam(clock, itertools.cycle([False, False, False, True]))
    timer = PerfCounterTimer(0.0, WarmUp(), team=team)
    (samples,) = timer.collect([Candidate("A", team.call)], [[0]] * 40)
    assert samples == [500.0] * 40


def test_no_more_batches_are_repeated_than_kept(clock):
    team = WaitingTeam(clock, itertools.repeat(True))
    timer = PerfCounterTimer(0.0, WarmUp(), team=team)
    (samples,) = timer.collect([Candidate("A", team.call)], [[0]] * 40)
    assert samples == [3500.0] * 40
    assert team.calls < 100


# -- slots -----------------------------------------------------------------------------------------
@given(ORDERS)
def test_slots_are_the_orders_one_after_the_other(orders):
    slots = plan_slots(_field(), orders)
    assert [slot.candidate for slot in slots] == [at for order in orders for at in order]
    assert [slot.number for slot in slots] == list(range(len(slots)))


@given(ORDERS)
def test_one_run_of_each_candidate_is_checked(orders):
    checked = Counter(slot.candidate for slot in plan_slots(_field(), orders) if slot.checked)
    assert checked == Counter({at for order in orders for at in order})


@given(ORDERS, st.integers(2, 5))
def test_adjacent_runs_share_no_copy_and_every_order_is_kept(orders, copies):
    field = _field(copies)
    slots = plan_slots(field, orders, rotate=True)
    for slot in slots:
        assert slot.run is field[slot.candidate].rotations[slot.number % copies]
    assert all(slot.run is field[slot.candidate].run for slot in plan_slots(field, orders))


@given(st.integers(0, 700), st.integers(1, 200))
def test_chunks_keep_all_slots_in_order_and_within_bounds(count, most):
    slots = [Slot(number, 0, _nothing) for number in range(count)]
    parts = list(chunks(slots, most))
    assert [slot for part in parts for slot in part] == slots
    assert all(0 < len(part) <= most for part in parts)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


@given(ORDERS)
def test_samples_are_in_order_of_the_runs(orders):
    slots = plan_slots(_field(), orders)
    rows = by_candidate(5, slots, [float(slot.number) for slot in slots])
    assert all(row == sorted(row) for row in rows)
    assert sorted(itertools.chain(*rows)) == [float(slot.number) for slot in slots]


# -- which clock -----------------------------------------------------------------------------------
def test_long_kernels_are_timed_by_events_and_short_ones_in_graphs():
    for cache in ("cold", "rotate", "warm"):
        assert choose_method(200.0, cache) == "events"
        assert choose_method(199.9, cache) == "graph"
        assert choose_method(0.0, cache) == "graph"
    with pytest.raises(TunerError, match="no cache policy `lukewarm`"):
        choose_method(1.0, "lukewarm")


def test_a_timer_is_created_by_its_method():
    flush, known = torch.empty(1), Calibration(0.5, {"events": 2.0, "graph": 1.0})
    kinds = {"events": EventTimer, "graph": GraphTimer, "cupti": CuptiTimer}
    for method in METHODS:
        for cache in ("cold", "warm", "rotate"):
            timer = gpu_timer(method, flush, WarmUp(), known, cache)
            assert type(timer) is kinds[method]
            assert (timer.method, timer.cache) == (method, cache)
    assert gpu_timer("graph", flush, WarmUp(), known, "cold").quantum_us == 0.5
    assert gpu_timer("graph", flush, WarmUp(), Calibration(), "cold").quantum_us > 0


@pytest.mark.parametrize(
    ("method", "cache", "problem"),
    [
        ("auto", "warm", "no timing method `auto`"),
        ("graph", "hot", "no cache policy `hot`"),
        ("graph", "cold", "needs a flush buffer"),
    ],
)
def test_invalid_methods_and_policies_are_refused(method, cache, problem):
    with pytest.raises(TunerError, match=problem) as raised:
        gpu_timer(method, None, WarmUp(), Calibration(), cache)
    assert raised.value.hint


@pytest.mark.parametrize("error", [CaptureFailed("A", "it waits"), CuptiFailed("nothing seen")])
def test_refusals_cross_process_boundaries(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint) == (type(error), error.message, error.hint)


# -- attributing what the device did ---------------------------------------------------------------
def _trace(*names):
    """Activities one after the other, each 10 ns long with 5 ns between."""
    return [
        Activity("void nextafter_kernel" if name == "|" else name, 15 * at, 15 * at + 10)
        for at, name in enumerate(names)
    ]


def _names(runs):
    return [[activity.name for activity in run] for run in runs]


def test_activities_between_two_markers_belong_to_the_run():
    trace = _trace("flush", "|", "a", "memset", "|", "audit", "flush", "|", "b", "|")
    assert _names(runs_of(trace, 2)) == [["a", "memset"], ["b"]]
    assert _names(runs_of(trace[::-1], 2)) == [["a", "memset"], ["b"]]


def test_lost_leading_markers_do_not_matter():
    trace = _trace("|", "|", "|", "flush", "|", "a", "|")
    for lost in range(4):
        assert _names(runs_of(trace[lost:], 1)) == [["a"]]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("|", "a"), "1 of 2 markers of 1 runs"),
        (("a", "b"), "0 of 2 markers of 1 runs"),
        (("a", "|", "|"), "no activity was recorded for 1 of 1 runs"),
    ],
)
def test_gaps_in_the_records_are_errors(names, problem):
    with pytest.raises(CuptiFailed, match=problem):
        runs_of(_trace(*names), 1)


def test_the_marker_is_part_of_the_name_of_its_kernel():
    assert MARKER in torch.nextafter.__name__
