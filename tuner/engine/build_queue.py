"""Which variant is built next, and how far builds run ahead of the devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.engine.dispatcher import Dispatcher
from tuner.engine.instructions import Build, Record
from tuner.engine.jobs import Job, Work
from tuner.engine.task import Task
from tuner.engine.task_spec import Aim
from tuner.engine.trial_table import TrialState

#: One extra build is queued per this number of builders, so that no builder waits for the driver.
_EXTRA = 4
#: Ready trials per device, beyond one per builder, at which no further config is asked.
_READY_PER_DEVICE = 4


@dataclass(slots=True)
class BuildQueue:
    """Orders builds of the active tasks in turns."""

    dispatcher: Dispatcher
    #: Builds that run at once.
    builders: int
    #: How many configs the event in hand may still ask for.
    left: int = 0
    #: There is room for more builds than `left` allowed. The next Tick orders them.
    deferred: bool = False
    #: No new config is asked.
    draining: bool = False
    #: Counts the turns of the tasks.
    _turn: int = 0

    def begin(self, limit: int) -> None:
        """A new event is handled; it may order `limit` builds."""
        self.left, self.deferred = limit, False

    def orders(self, tasks: Sequence[Task], now: float) -> list[Build | Record]:
        """Builds, as far as there is room, and records of configs whose result is known."""
        room = self.builders + max(2, self.builders // _EXTRA) - self.dispatcher.building
        tasks = [task for task in tasks if not task.build_faults.pausing(now)]
        instructions: list[Build | Record] = []
        without_build = 0
        while room > 0 and without_build < len(tasks):
            if self.left == 0:
                self.deferred = True
                break
            task = tasks[self._turn % len(tasks)]
            self._turn += 1
            job, records = self._next_job(task, now)
            instructions += records
            if job is None:
                without_build += 1
                continue
            without_build = 0
            room -= 1
            self.left -= 1
            instructions.append(self.dispatcher.order_build(job))
        return instructions

    def _next_job(self, task: Task, now: float) -> tuple[Job | None, list[Record]]:
        """The task's next build, and records of known results that were found on the way."""
        needing, in_build = task.finals or task.search, self.dispatcher.in_build
        for unchecked in needing.checks_to_build():
            if not in_build(unchecked, Work.CHECK_BUILD):
                return Job(Work.CHECK_BUILD, task, trials=(unchecked,)), []
        freed = (trial for trial in needing.to_rebuild() if not in_build(trial, Work.BUILD))
        trial = next(freed, None) or task.search.trials.first(TrialState.ASKED)
        again = None if trial is None else Job(Work.BUILD, task, trials=(trial,))
        if trial is not None and not trial.attempt:
            return again, []
        # Others go before a trial whose builds were lost: they show whether it is at fault.
        job, records = self._next_trial(task, now) if task.finals is None else (None, [])
        return job or again, records

    def _next_trial(self, task: Task, now: float) -> tuple[Job | None, list[Record]]:
        """A build of a new config. Configs with a known result are recorded without one."""
        records: list[Record] = []
        while self.left > 0 and not self.draining and self._has_room(task):
            trial = task.search.asker.next_trial(now)
            if trial is None:
                break
            known = task.search.known_result(trial)
            if known is None:
                return Job(Work.BUILD, task, trials=(trial,)), records
            records += task.finish(trial, known)
            self.left -= 1  # a suggestion takes its time, and a stop waits for the event
        return None, records

    def _has_room(self, task: Task) -> bool:
        """Whether few enough trials wait for a device; a comparison waits for all of them."""
        if task.spec.aim is Aim.COMPARE:
            return True
        devices = max(1, self.dispatcher.serving(task))
        ready = task.search.trials.count(TrialState.READY)
        return ready < _READY_PER_DEVICE * devices + self.builders
