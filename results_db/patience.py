"""Retry calls while the database is unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from results_db.errors import StoreAwayError

T = TypeVar("T")

_log = logging.getLogger(__name__)
_FIRST_S, _LONGEST_S, _LOOK_S = 0.1, 5.0, 0.1


@dataclass(slots=True)
class Outage:
    """One outage of the database: when to retry and when to give up.

    It begins with the first call that fails and ends with the first call that succeeds.
    """

    #: Seconds of outage after which a failed call raises its error.
    patience_s: float
    clock: Callable[[], float] = time.monotonic
    _since: float | None = None
    _next: float = 0.0
    _pause_s: float = _FIRST_S

    @property
    def lasts(self) -> bool:
        return self._since is not None

    @property
    def waits(self) -> bool:
        """Whether it is too early for a retry."""
        return self.lasts and self.clock() < self._next

    def record_failure(self, error: StoreAwayError) -> None:
        """Record a failed call; raises its error if the outage exceeds `patience_s`."""
        now = self.clock()
        if self._since is None:
            self._since, self._pause_s = now, _FIRST_S
            if self.patience_s > 0:
                _log.warning("%s; retrying for up to %.0f s", error.message, self.patience_s)
        if now - self._since >= self.patience_s:
            raise error
        _log.debug("the database is unavailable for %.1f s: %s", now - self._since, error.message)
        self._next = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)

    def end(self) -> None:
        """Record a call that succeeded."""
        if self._since is not None:
            _log.warning("the database is back after %.0f s", self.clock() - self._since)
            self._since = None


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long calls are repeated during an outage. Every call must be repeatable."""

    #: Seconds in total; 0 for no repetition.
    wait_s: float = 0.0
    #: Whether to stop waiting.
    stopped: Callable[[], bool] = field(default=lambda: False)

    def insist(self, call: Callable[[], T]) -> T:
        """The result of a call, which is repeated during an outage."""
        outage = Outage(self.wait_s)
        while True:
            try:
                found = call()
            except StoreAwayError as error:
                outage.record_failure(error)
            else:
                outage.end()
                return found
            while outage.waits:
                if self.stopped():
                    return call()
                time.sleep(_LOOK_S)
