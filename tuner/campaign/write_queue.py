"""Writes to the database that wait until no worker waits, or until the database answers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from results_db import StoreAwayError, StoreError
from results_db.patience import Outage
from search_spaces.errors import SourceChangedError
from tuner.base.tracing import span

#: A write. Done twice it must have the same effect as done once.
Write: TypeAlias = Callable[[], object]

#: The most results that may wait while workers wait, and for how long. A driver that is killed
#: loses what waits: less than a second of work.
_WAITING = 64
_WAITING_S = 0.5
#: The most results that may wait while the database is away. Then the workers wait too.
MOST_WAITING = 1000
_POLL_S = 0.1
_log = logging.getLogger(__name__)


class WriteQueue:
    """Writes in their order, repeated through an outage of the database."""

    def __init__(
        self, patience_s: float, clock: Callable[[], float], check: Callable[[], None]
    ) -> None:
        """patience_s: how long the database may be away. clock: the driver's, in seconds.

        check: called before each write; raises where nothing may be stored any more.
        """
        self._clock, self._check = clock, check
        self._outage = Outage(patience_s)
        #: Each write with the time at which it was added.
        self._queue: deque[tuple[float, Write]] = deque()

    def add(self, write: Write) -> None:
        """Do this write after all that were added before."""
        self._queue.append((self._clock(), write))

    @property
    def full(self) -> bool:
        """Whether the database is away and so much waits that workers must wait too."""
        return self._outage.lasts and len(self._queue) >= MOST_WAITING

    @property
    def can_write(self) -> bool:
        """Whether something waits and the database may be tried."""
        return bool(self._queue) and not self._outage.waits

    def write(self, count: int = 1) -> None:
        """Do the next `count` writes, as far as the database answers."""
        for _ in range(count):
            if not self.can_write:
                return
            if not self.attempt(self._queue[0][1]):
                return
            self._queue.popleft()

    def write_overdue(self) -> None:
        """Do the writes that have waited too long, or that are too many."""
        latest = self._clock() - _WAITING_S
        late = sum(added <= latest for added, _ in self._queue)
        self.write(max(late, len(self._queue) - _WAITING))

    def attempt(self, write: Write) -> bool:
        """Do one write now. False if the database is away; raises when it is away too long."""
        if self._outage.waits:
            return False
        self._check()
        try:
            with span("write", "database"):
                write()
        except StoreAwayError as error:
            self._outage.record_failure(error)
            return False
        self._outage.end()
        return True

    def pause(self) -> None:
        """Wait for the database and try the next write."""
        time.sleep(_POLL_S)
        self.write()

    def flush(self, stopped: Callable[[], bool]) -> None:
        """Do all writes; wait for the database unless the run is stopped at once."""
        while self._queue:
            self.write(len(self._queue))
            if self._outage.lasts and stopped():
                self.drop()
            elif self._outage.lasts:
                time.sleep(_POLL_S)

    def save(self) -> None:
        """Do as many writes as possible when the run ends by an error."""
        with suppress(StoreError, SourceChangedError):
            self.write(len(self._queue))
        self.drop()

    def drop(self) -> None:
        """Forget what waits: the database does not take it."""
        if self._queue:
            _log.warning("%d results could not be stored", len(self._queue))
            self._queue.clear()
