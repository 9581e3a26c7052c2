"""The trials of one search and what is known of them. No other module changes a trial."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from results_db.stored_records import Source, TrialRecord
from search_spaces.records import Config, Status, config_key
from workers.job_records import Artifact, Failure

#: Builds are late that take longer than this many times the median build: a search drops them where
#: little is expected of them. Where also as many seconds are over, they are stuck, since their code
#: does not fit into the registers: another builder does them, and after half of that the search
#: gives them up.
_LATE, _STUCK = (2.5, 0.0), (15.0, 6.0)


# -- one config of a task and its progress through build and measurement ---------------------------
class TrialState(StrEnum):
    """How far a trial has come."""

    #: Suggested; its build is not ordered yet.
    ASKED = "asked"
    #: A builder has it.
    BUILDING = "building"
    #: Built; it waits for a device.
    READY = "ready"
    #: Built; another trial with the same binary is being measured, and this one takes its result.
    WAITING = "waiting"
    #: A device has it.
    MEASURING = "measuring"
    #: Recorded.
    DONE = "done"
    #: Given up without a result; the search no longer holds it.
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Trial:
    """One config of a task, changed by its `TrialTable` only. Equal only if the same object."""

    #: Its place in the order in which the task's configs were asked.
    number: int
    config: Config
    #: The identity of the config.
    key: str
    #: What suggested the config: a strategy, or `default`, `warm`, `known`, `polish`.
    strategy: str
    state: TrialState = TrialState.ASKED
    #: Jobs with this trial that were lost or did not reach it.
    attempt: int = 0
    artifact: Artifact | None = None
    record: TrialRecord | None = None
    #: ln(time in us), once it is known.
    score: float | None = None
    #: It was in a job that failed as a whole. Its next measurement has no other candidate.
    alone: bool = False
    #: Its artifact for the task's check size, or why there is none; None: not built yet.
    check_artifact: Artifact | Failure | None = field(default=None, repr=False)
    #: The engine's clock when it was asked, or when a second builder got it.
    asked_at: float = 0.0
    #: A second builder has it, since the first one takes long.
    again: bool = False


# -- the trials of one search and what is known of them --------------------------------------------
class TrialTable(Mapping[str, Trial]):
    """Trials by config key, in the order in which they were asked."""

    def __init__(self) -> None:
        #: The trial that is measured for each binary, by digest.
        self.by_binary: dict[str, Trial] = {}
        #: Digests of binaries that were verified on a device of this kind.
        self.verified: set[str] = set()
        #: Device seconds of all results.
        self.device_s = 0.0
        #: Durations of builds in seconds, sorted.
        self._build_s: list[float] = []
        #: A trial that no worker has is dropped.
        self._drops_idle = False
        self._by_key: dict[str, Trial] = {}
        self._states: dict[TrialState, dict[int, Trial]] = {state: {} for state in TrialState}
        self._numbers: set[int] = set()
        #: Numbers in order that no trial has had, neither in this run nor before it was resumed.
        self._unused = itertools.filterfalse(self._numbers.__contains__, itertools.count())

    def __getitem__(self, key: str) -> Trial:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def values(self) -> ValuesView[Trial]:
        """All trials; the view of `Mapping` would look up each of them."""
        return self._by_key.values()

    def items(self) -> ItemsView[str, Trial]:
        """All keys with their trials."""
        return self._by_key.items()

    @property
    def open(self) -> int:
        """How many are not done."""
        return len(self._by_key) - len(self._states[TrialState.DONE])

    @property
    def done(self) -> int:
        """How many have a result."""
        return self.count(TrialState.DONE)

    @property
    def median_build_s(self) -> float:
        """The usual duration of a build; infinite before the first one."""
        return self._build_s[len(self._build_s) // 2] if self._build_s else math.inf

    def of(self, config: Config) -> Trial | None:
        """The trial of a config, if there is one."""
        return self._by_key.get(config_key(config))

    def in_state(self, state: TrialState) -> list[Trial]:
        """All trials in a state, in the order in which they entered it."""
        return list(self._states[state].values())

    def list_building(self) -> list[Trial]:
        """All trials whose build is to be ordered or under way."""
        return [*self.in_state(TrialState.ASKED), *self.in_state(TrialState.BUILDING)]

    def list_late_builds(self, now: float, *, stuck: bool = False) -> list[Trial]:
        """The open trials where all of them wait for builds that take longer than others did.

        stuck: far longer.
        """
        times, least_s = _STUCK if stuck else _LATE
        limit_s = max(least_s, times * self.median_build_s)

        def is_late(trial: Trial) -> bool:
            return now - trial.asked_at > (limit_s / 2 if stuck and trial.again else limit_s)

        building = self.list_building()
        return building if len(building) == self.open and all(map(is_late, building)) else []

    def count(self, state: TrialState) -> int:
        """How many trials are in a state."""
        return len(self._states[state])

    def first(self, state: TrialState) -> Trial | None:
        """The trial in that state that was asked first of those with the fewest lost jobs."""
        trials = self._states[state].values()
        return min(trials, key=lambda trial: (trial.attempt, trial.number), default=None)

    # -- changes of a trial --------------------------------------------------------------------
    def add(self, config: Config, strategy: str, asked_at: float) -> Trial:
        """A new trial in state ASKED."""
        return self._insert(next(self._unused), config, strategy, asked_at=asked_at)

    def restore(self, record: TrialRecord) -> Trial:
        """The trial of a result that was stored before the run was interrupted."""
        trial = self._insert(record.number, record.config, record.strategy, state=TrialState.DONE)
        self._take_record(trial, record)
        return trial

    def start_build(self, trial: Trial) -> None:
        """A builder has it. A trial that has its result stays DONE."""
        if trial.state is TrialState.ASKED:
            self._move(trial, TrialState.BUILDING)

    def build_again(self, trial: Trial, now: float) -> None:
        """A second builder has it, from `now` on."""
        trial.again, trial.asked_at = True, now

    def take_build(self, trial: Trial, artifact: Artifact, *, alone: bool = False) -> Trial:
        """Measure the trial next, or wait for the first trial with its binary, which is returned.

        alone: it has a measurement of its own, whatever its binary.
        If that one has its result already, the caller finishes this trial with it. A trial that has
        its own was built again for its artifact only.
        """
        trial.artifact = artifact
        if trial.state is TrialState.DONE:
            return trial
        first = trial if alone else self.by_binary.setdefault(artifact.binary_hash, trial)
        if first is trial or first.record is None:
            self._move(trial, TrialState.READY if first is trial else TrialState.WAITING)
        return first

    def start_measurement(self, trial: Trial) -> None:
        """A device has it."""
        self._move(trial, TrialState.MEASURING)

    def finish(self, trial: Trial, record: TrialRecord) -> None:
        """It has its result."""
        self._move(trial, TrialState.DONE)
        if record.build_s > 0:
            bisect.insort(self._build_s, record.build_s)
        self._take_record(trial, record)

    def requeue(self, trial: Trial, state: TrialState) -> None:
        """Queue a trial again whose job gave no result, unless idle trials are dropped.

        state: ASKED to build it again, READY to measure it again.
        """
        self._move(trial, state)
        if self._drops_idle:
            self.drop(trial)

    def drop(self, trial: Trial) -> None:
        """Forget a trial that has no result. Its config may be asked again."""
        del self._states[trial.state][trial.number]
        del self._by_key[trial.key]
        trial.state = TrialState.DROPPED
        if trial.artifact and self.by_binary.get(trial.artifact.binary_hash) is trial:
            del self.by_binary[trial.artifact.binary_hash]

    def drop_idle(self) -> None:
        """Drop every trial that no worker has, now and later."""
        self._drops_idle = True
        for state in (TrialState.ASKED, TrialState.READY, TrialState.WAITING):
            for trial in self.in_state(state):
                self.drop(trial)

    def count_loss(self, trial: Trial) -> int:
        """Note a job that was lost or did not reach the trial; how many there were."""
        trial.attempt += 1
        return trial.attempt

    def isolate(self, trial: Trial) -> None:
        """Measure the trial without other candidates from now on."""
        trial.alone = True

    def take_check_build(self, trial: Trial, result: Artifact | Failure) -> None:
        """Take what came of the trial's build at the check size."""
        trial.check_artifact = result

    def release(self, trial: Trial) -> None:
        """Free the artifact of a trial that cannot reach the finals.

        The default config takes part in them however slow it is.
        """
        if trial.score is None or trial.strategy != "default":
            trial.artifact = None

    def release_all(self) -> None:
        """Free all artifacts: the task is over."""
        for trial in self.values():
            trial.artifact = trial.check_artifact = None

    def forget_time(self, trial: Trial) -> None:
        """It cannot be built or measured any more."""
        trial.score = None

    def _move(self, trial: Trial, state: TrialState) -> None:
        self._states[trial.state].pop(trial.number, None)
        self._states[state][trial.number] = trial
        trial.state = state

    def _take_record(self, trial: Trial, record: TrialRecord) -> None:
        trial.record = record
        self.device_s += record.device_s
        correct = record.status is Status.CORRECT
        if correct and record.median_us:
            trial.score = math.log(record.median_us)
        if record.binary_hash and record.source != Source.BINARY:
            self.by_binary.setdefault(record.binary_hash, trial)
            if correct and record.verified_by:
                self.verified.add(record.binary_hash)

    def _insert(self, number: int, config: Config, strategy: str, **fields: Any) -> Trial:
        trial = Trial(number, config, config_key(config), strategy, **fields)
        self._numbers.add(trial.number)
        self._by_key[trial.key] = trial
        self._states[trial.state][trial.number] = trial
        return trial
