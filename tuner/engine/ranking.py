"""The timed trials of one search, fastest first, and the incumbent.

Notation: `score` is ln(time in us) of a trial; ties are ordered by trial number.
"""

from __future__ import annotations

import bisect
import math

from tuner.engine.trial import Trial


class Ranking:
    """Trials that may win. The first one to reach the best score is the incumbent."""

    def __init__(self) -> None:
        self.incumbent: Trial | None = None
        #: (score, number, trial), sorted.
        self._entries: list[tuple[float, int, Trial]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, trial: Trial) -> None:
        """Rank a trial that has a score."""
        assert trial.score is not None
        bisect.insort(self._entries, (trial.score, trial.number, trial))
        best = self.incumbent
        if best is None or best.score is None or trial.score < best.score:
            self.incumbent = trial

    def trials(self) -> list[Trial]:
        """All ranked trials, fastest first."""
        return [trial for _, _, trial in self._entries]

    def at(self, place: int) -> Trial | None:
        """The trial at that place, from 0."""
        return self._entries[place][2] if place < len(self._entries) else None

    def is_among(self, trial: Trial, places: int) -> bool:
        """Whether the trial is ranked, and before the trial at that place."""
        if trial.score is None:
            return False
        limit = self._entries[places][:2] if places < len(self._entries) else (math.inf, 0)
        return (trial.score, trial.number) < limit

    def drop_incumbent(self) -> None:
        """Take the incumbent out of the ranking; the next trial becomes the incumbent."""
        if self.incumbent is not None:
            self.incumbent.score = None
            self._entries = [entry for entry in self._entries if entry[2] is not self.incumbent]
        self.incumbent = self._entries[0][2] if self._entries else None
