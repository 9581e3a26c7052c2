"""The contract of `Timer`: a test class that the tests of each implementation inherit."""

from __future__ import annotations

import gc

import pytest

from workers.measure.timers.thread_team import ThreadTeam
from workers.measure.timers.timer import Candidate


class StillTeam(ThreadTeam):
    """Threads that never wait, however busy the machine is: a batch is timed once."""

    def enter(self) -> None:
        """Bind nothing."""

    def waited_us(self) -> float:
        return 0.0


ORDERS = [[0], [1, 1, 2], [], [2, 0, 1, 1]]
RUNS = [2, 4, 2]


class Log:
    """Candidates that record calls and run `work`."""

    def __init__(self, work):
        self.work = work
        self.entered = []
        self.ran = []
        self.checked = []

    def candidate(self, name, copies=0):
        return Candidate(
            name,
            self._run(name, None),
            enter=lambda: self.entered.append(name),
            after_checked_run=lambda result: self.checked.append((name, result)),
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
    """Subclasses define `timer(cache)`, a new timer, and `work()`, work that it can time."""

    def timer(self, cache="warm"):
        raise NotImplementedError

    def work(self):
        raise NotImplementedError

    @pytest.fixture
    def log(self):
        return Log(self.work)

    def test_orders_may_omit_and_repeat_candidates(self, log):
        timer = self.timer()
        samples = timer.collect(log.field("ABC"), ORDERS)
        assert [len(row) for row in samples] == RUNS
        assert all(time_us > 0 for row in samples for time_us in row)
        assert timer.collect(log.field("AB"), [[1]])[0] == []
        assert timer.collect(log.field("AB"), []) == [[], []]

    def test_one_run_of_each_candidate_is_checked_with_its_result(self, log):
        timer = self.timer()
        timer.collect(log.field("ABCD"), ORDERS)
        assert sorted(name for name, _ in log.checked) == ["A", "B", "C"]
        assert all(name == result[0] for name, result in log.checked)

    def test_the_checked_run_is_random(self, log):
        timer, field = self.timer(), log.field("A")
        timer.collect(field, [[0]])
        drawn = set()
        for _ in range(30):
            before = len(log.ran)
            timer.collect(field, [[0]] * 8)
            drawn.add(log.checked[-1][1][1] - before)
        # The probability that 30 draws from 8 have at most three values is below 10^-11.
        assert len(drawn) > 3

    def test_a_candidate_is_entered_before_each_of_its_runs(self, log):
        self.timer().collect(log.field("ABC"), ORDERS)
        expected = [name for order in ORDERS for name in ("ABC"[at] for at in order)]
        assert log.entered[-len(expected) :] == expected

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

    def test_an_error_propagates_and_leaves_the_timer_usable(self, log):
        def broken():
            raise ValueError("boom")

        timer = self.timer()
        with pytest.raises(Exception, match="boom"):
            timer.collect([*log.field("A"), Candidate("broken", broken)], [[0, 1]])
        assert gc.isenabled()
        assert [len(row) for row in timer.collect(log.field("AB"), [[0, 1]])] == [1, 1]

    def test_method_and_cache_policy_are_recorded(self):
        for cache in ("warm", "rotate"):
            timer = self.timer(cache)
            assert timer.cache == cache
            assert timer.method
            assert timer.quantum_us >= 0
