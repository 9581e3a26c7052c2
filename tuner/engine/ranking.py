"""The timed trials of one search, fastest first, and the incumbent.

Notation: `score` is ln(time in us) of a trial; ties are ordered by trial number.
"""

from __future__ import annotations

import bisect
import logging
import math

from results_db.stored_records import Source
from tuner.engine.task_spec import TaskSpec
from tuner.engine.trial_table import Trial

_log = logging.getLogger(__name__)


class Ranking:
    """Trials that may win. The first one to reach the best score is the incumbent."""

    def __init__(self, spec: TaskSpec) -> None:
        self.incumbent: Trial | None = None
        self._spec = spec
        #: (score, number, trial), sorted.
        self._entries: list[tuple[float, int, Trial]] = []

    def add(self, trial: Trial) -> Trial | None:
        """Rank a trial that has its result, if it may win.

        Returns the one trial, if any, that can no longer reach the finals: this one, or the trial
        that it displaces.
        """
        if trial.score is None or not self._may_win(trial):
            return trial
        entry = trial.score, trial.number, trial
        place = bisect.bisect(self._entries, entry)
        self._entries.insert(place, entry)
        best = self.incumbent
        if best is None or best.score is None or trial.score < best.score:
            self.incumbent = trial
            label, time_us = self._spec.label, math.exp(trial.score)
            _log.debug("%s: incumbent is trial %d, %.3f us", label, trial.number, time_us)
        kept = 2 * self._spec.finalists
        if place >= kept:
            return trial
        return self._entries[kept][2] if kept < len(self._entries) else None

    def trials(self) -> list[Trial]:
        """All ranked trials, fastest first."""
        return [trial for _, _, trial in self._entries]

    def drop_incumbent(self) -> None:
        """Take the incumbent out of the ranking; the next trial becomes the incumbent."""
        self._entries = [entry for entry in self._entries if entry[2] is not self.incumbent]
        self.incumbent = self._entries[0][2] if self._entries else None

    def _may_win(self, trial: Trial) -> bool:
        """Whether a time is ranked.

        The time of a dropped candidate is not: with an outlier among the incumbent's samples, its
        few samples would look like a new best. The time of a duplicate binary is ranked once, for
        the trial that was measured.
        """
        record = trial.record
        measured = record is not None and record.source != Source.BINARY
        return measured and not self._spec.dropped_early(record)
