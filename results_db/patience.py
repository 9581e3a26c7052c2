"""Going on through a time in which the database is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from results_db.errors import StoreAwayError

T = TypeVar("T")

_log = logging.getLogger("tuner.database")
_FIRST_S, _LONGEST_S, _LOOK_S = 0.1, 5.0, 0.1


@dataclass(slots=True)
class Outage:
    """One time in which the database is away: when to try again, and when to give up.

    It begins with the first call that fails and is over with the first one that does not.
    """

    #: Seconds after which a call that fails is an error.
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
        """Whether it is too early to try again."""
        return self.lasts and self.clock() < self._next

    def failed(self, error: StoreAwayError) -> None:
        """Take a failure; raises it when it has lasted too long."""
        now = self.clock()
        if self._since is None:
            self._since, self._pause_s = now, _FIRST_S
            if self.patience_s > 0:
                _log.warning(
                    "tuner: %s; trying again for up to %.0f s", error.message, self.patience_s
                )
        if now - self._since >= self.patience_s:
            raise error
        self._next = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)

    def over(self) -> None:
        """The database has answered."""
        if self._since is not None:
            _log.warning("tuner: the database is back after %.0f s", self.clock() - self._since)
            self._since = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long calls are repeated while the database is away. Every call must bear repetition."""

    #: Seconds in all; 0 for not at all.
    wait_s: float = 0.0
    #: Says when there is no point in going on.
    stopped: Callable[[], bool] = field(default=lambda: False)

    def insist(self, call: Callable[[], T]) -> T:
        """The result of the call, once the database answers."""
        outage = Outage(self.wait_s)
        while True:
            try:
                found = call()
            except StoreAwayError as error:
                outage.failed(error)
            else:
                outage.over()
                return found
            while outage.waits:
                if self.stopped():
                    return call()
                time.sleep(_LOOK_S)
