"""The time that finals take: for progress, and to keep free where wall-clock time is limited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

from results_db.stored_records import Stage
from tuner.engine.task import Task

_FINALS = (Stage.FINALS, Stage.CONFIRM)


#: The share of a run with a limit that is kept free before any finals are over.
_SHARE = 1 / 3


def limit_finals(run_s: float | None, tasks_a_device: float) -> float:
    """The most seconds to expect of the finals of a task before the run has seen any.

    run_s: the time of the whole run; None: no limit. tasks_a_device: how many timed tasks a device
    has on average. Their finals wait for each other. All of them together take at most a third of
    the run, or the searches would end at their start.
    """
    return math.inf if run_s is None else run_s * _SHARE / max(1.0, tasks_a_device)


@dataclass(slots=True)
class FinalsTime:
    """Learns how long finals take, and gives every open search the seconds to keep free for them.

    The first estimate is `TaskBudget.finals_s`. Finals that are over replace it by their mean.
    """

    #: When the finals of a task began, by task number.
    _began: dict[int, float] = field(default_factory=dict)
    _lasted_s: list[float] = field(default_factory=list)
    #: When the finals of a task ended last.
    _ended: float = 0.0

    def update(self, tasks: Sequence[Task], workers: int, now: float) -> None:
        """Set `finals_s` of every open search, if the run has a limit. workers: how many devices.

        All tasks of a run have the same limit.
        """
        timed = [task for task in tasks if not task.spec.compile_only]
        for task in timed:
            if task.stage in _FINALS or task.spec.task_id in self._began:
                self._observe(task, workers, now)
        if not tasks or tasks[0].spec.budget.ends_at is None:
            return
        searched = [task for task in timed if task.stage is Stage.SEARCH]
        begun = [task for task in timed if task.stage in _FINALS]
        begun += [task for task in searched if task.search.trials]
        for task in searched:
            own_s = self._expected_s(task)
            others_s = sum(self._expected_s(each) for each in begun if each is not task)
            task.search.asker.finals_s = max(own_s, (own_s + others_s) / max(1, workers))

    def left_s(self, tasks: Sequence[Task], workers: int, now: float) -> float:
        """Expected seconds of all finals that are not over. workers: how many devices."""
        left = [
            max(0.0, self._expected_s(task) - (now - self._began.get(task.spec.task_id, now)))
            for task in tasks
            if task.stage is not Stage.DONE and not task.spec.compile_only
        ]
        return sum(left) / max(1, min(workers, len(left)))

    def _observe(self, task: Task, workers: int, now: float) -> None:
        number = task.spec.task_id
        if task.stage in _FINALS:
            self._began.setdefault(number, now)
            return
        began = self._began.pop(number)
        # On one device, finals of several tasks wait for each other.
        began = max(began, self._ended) if workers == 1 else began
        self._lasted_s.append(max(0.0, now - began))
        self._ended = now

    def _expected_s(self, task: Task) -> float:
        return mean(self._lasted_s) if self._lasted_s else task.spec.budget.finals_s


# -- the expected time until a run ends, as users see it: it falls steadily while the rate holds
# Notation, in seconds: t now, t0 when the first trials were finished, d trials finished since then,
# the last of them at t1, w trials that are left, f expected for the finals. The estimate of the
# moment is
#
#     e(t) = w max((t1 - t0) / d, (t - t0) / (d + 1)) + f.
#
# Starting workers has no part in the rate, and the second term is for a trial that takes long. e
# jumps at each trial, and where the plan changes: a search ends early, or the first finals tell how
# long finals take. What is shown counts down with the clock and approaches e within the time tau, a
# fourth of what is left:
#
#     s(t + h) = e + (s(t) - h - e) exp(-h / tau).
#
# So s falls by h in h while the rate holds, and rises only where e exceeds it by more than tau.
#: Trials after the first ones from which a rate follows.
_LEAST_TRIALS = 3
_LEAST_TAU_S = 5.0
_TAU_SHARE = 0.25


@dataclass(slots=True)
class TimeLeft:
    """The time left of one run, from what it has finished at each moment."""

    #: When the first trials were finished, and how many these were.
    _first: tuple[float, int] | None = None
    #: When the latest trials were finished, and how many are.
    _latest: tuple[float, int] = (0.0, 0)
    #: The last moment, and what was shown then.
    _shown: tuple[float, float] | None = None

    def update(self, now: float, finished: int, left: int | None, finals_s: float) -> float | None:
        """Expected seconds until the end, never negative; None while unknown.

        finished: trials that this process has finished. left: planned trials that are not finished;
        None while unknown. finals_s: expected seconds of all finals that are not over.
        """
        if self._first is None and finished:
            self._first = now, finished
        if finished != self._latest[1]:
            self._latest = now, finished
        estimate = self._estimate(now, finished, left, finals_s)
        if estimate is None:
            self._shown = None
            return None
        shown_s = estimate
        if self._shown is not None and estimate > 0.0:
            passed_s = max(0.0, now - self._shown[0])
            tau_s = max(_LEAST_TAU_S, _TAU_SHARE * estimate)
            ahead_s = self._shown[1] - passed_s - estimate
            shown_s = max(0.0, estimate + ahead_s * math.exp(-passed_s / tau_s))
        self._shown = now, shown_s
        return shown_s

    def _estimate(
        self, now: float, finished: int, left: int | None, finals_s: float
    ) -> float | None:
        if left is None:
            return None
        if left <= 0:
            return max(0.0, finals_s)
        began, before = self._first or (now, finished)
        timed = finished - before
        if timed < _LEAST_TRIALS:
            return None
        each_s = max((self._latest[0] - began) / timed, (now - began) / (timed + 1))
        return max(0.0, left * each_s + finals_s)
