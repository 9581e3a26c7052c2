"""The trials of one search, by config and by state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from results_db.stored_records import TrialRecord
from search_spaces.records import Config, config_key
from tuner.engine.trial import Trial, TrialState


class TrialTable(Mapping[str, Trial]):
    """Trials by config key, in the order in which they were asked. Changes their states."""

    def __init__(self) -> None:
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

    @property
    def open(self) -> int:
        """How many are not done."""
        return len(self._by_key) - len(self._states[TrialState.DONE])

    def of(self, config: Config) -> Trial | None:
        """The trial of a config, if there is one."""
        return self._by_key.get(config_key(config))

    def add(self, config: Config, strategy: str, asked_at: float) -> Trial:
        """A new trial in state ASKED."""
        return self._insert(Trial(next(self._unused), config, strategy, asked_at=asked_at))

    def restore(self, record: TrialRecord) -> Trial:
        """The trial of a result that was stored before the run was interrupted."""
        trial = Trial(record.number, record.config, record.strategy, TrialState.DONE, record=record)
        return self._insert(trial)

    def move(self, trial: Trial, state: TrialState) -> None:
        """Change the state of a trial; nothing else may."""
        self._states[trial.state].pop(trial.number, None)
        self._states[state][trial.number] = trial
        trial.state = state

    def drop(self, trial: Trial) -> None:
        """Forget a trial that has no result. Its config may be asked again."""
        del self._states[trial.state][trial.number]
        del self._by_key[config_key(trial.config)]
        trial.state = TrialState.DROPPED

    def in_state(self, state: TrialState) -> list[Trial]:
        """All trials in a state, in the order in which they entered it."""
        return list(self._states[state].values())

    def count(self, state: TrialState) -> int:
        """How many trials are in a state."""
        return len(self._states[state])

    def first(self, state: TrialState) -> Trial | None:
        """The trial in that state that was asked first of those with the fewest lost jobs."""
        trials = self._states[state].values()
        return min(trials, key=lambda trial: (trial.attempt, trial.number), default=None)

    def _insert(self, trial: Trial) -> Trial:
        self._numbers.add(trial.number)
        self._by_key[config_key(trial.config)] = trial
        self._states[trial.state][trial.number] = trial
        return trial
