"""What every clock owes to those it times: a class of tests for each implementation to inherit."""

from __future__ import annotations

import gc

import pytest

from workers.measure.timers.timer import Candidate

ORDERS = [[0], [1, 1, 2], [], [2, 0, 1, 1]]
RUNS = [2, 4, 2]


class Log:
    """Candidates that note what is asked of them; `work` is what they really do."""

    def __init__(self, work):
        self.work = work
        self.entered = []
        self.ran = []
        self.settled = []

    def candidate(self, name, copies=0):
        return Candidate(
            name,
            self._run(name, None),
            enter=lambda: self.entered.append(name),
            after_checked_run=lambda result: self.settled.append((name, result)),
            rotations=tuple(self._run(name, copy) for copy in range(copies)),
        )

    def field(self, names, copies=0):
        return [self.candidate(name, copies) for name in names]

    def _run(self, name, copy):
        def run():
            self.work()
            self.ran.append((name, copy))
            return name, len(self.ran)

        return run


class TimerContract:
    """Subclasses say `timer(cache)`, a new timer, and `work()`, something it can time."""

    def timer(self, cache="warm"):
        raise NotImplementedError

    def work(self):
        raise NotImplementedError

    @pytest.fixture
    def log(self):
        return Log(self.work)

    def test_orders_may_leave_out_and_repeat(self, log):
        timer = self.timer()
        samples = timer.collect(log.field("ABC"), ORDERS)
        assert [len(row) for row in samples] == RUNS
        assert all(time_us > 0 for row in samples for time_us in row)
        assert timer.collect(log.field("AB"), [[1]])[0] == []
        assert timer.collect(log.field("AB"), []) == [[], []]

    def test_each_that_ran_settles_once_with_what_its_run_returned(self, log):
        timer = self.timer()
        timer.collect(log.field("ABCD"), ORDERS)
        assert sorted(name for name, _ in log.settled) == ["A", "B", "C"]
        assert all(name == result[0] for name, result in log.settled)

    def test_the_run_that_settles_is_drawn(self, log):
        timer, field = self.timer(), log.field("A")
        timer.collect(field, [[0]])
        drawn = set()
        for _ in range(30):
            before = len(log.ran)
            timer.collect(field, [[0]] * 8)
            drawn.add(log.settled[-1][1][1] - before)
        # 30 draws of 8 give three or fewer different ones less than once in 10^11.
        assert len(drawn) > 3

    def test_everyone_is_entered_before_each_of_its_runs(self, log):
        self.timer().collect(log.field("ABC"), ORDERS)
        wanted = [name for order in ORDERS for name in ("ABC"[who] for who in order)]
        assert log.entered[-len(wanted) :] == wanted

    def test_copies_are_used_only_under_rotate(self, log):
        self.timer("warm").collect(log.field("AB", copies=3), ORDERS[:1] * 2)
        assert {copy for _, copy in log.ran} == {None}
        del log.ran[:]
        samples = self.timer("rotate").collect(log.field("AB", copies=3), [[0, 1], [1, 0]] * 3)
        assert [len(row) for row in samples] == [6, 6]
        assert {copy for _, copy in log.ran} == {0, 1, 2}
        del log.ran[:]
        self.timer("rotate").collect(log.field("AB"), [[0, 1]])
        assert {copy for _, copy in log.ran} == {None}

    def test_an_error_is_told_and_leaves_the_timer_usable(self, log):
        def broken():
            raise ValueError("boom")

        timer = self.timer()
        with pytest.raises(Exception, match="boom"):
            timer.collect([*log.field("A"), Candidate("broken", broken)], [[0, 1]])
        assert gc.isenabled()
        assert [len(row) for row in timer.collect(log.field("AB"), [[0, 1]])] == [1, 1]

    def test_the_record_says_how_it_was_timed(self):
        for cache in ("warm", "rotate"):
            timer = self.timer(cache)
            assert timer.cache == cache
            assert timer.method
            assert timer.quantum_us >= 0
