"""A supervised child and a second one, already initialised, that takes over when the first is gone.

A device process takes seconds to import its libraries and open its device. The spare has done so,
and meanwhile does what must not be done by the first: what needs a process without a history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.builder import one_line, start
from workers.child import SupervisedChild

_log = logging.getLogger("tuner.workers")
#: A spare that cannot be had this often in a row, perhaps for want of memory, is done without.
_FAILURES = 2


class SparedChild:
    """One child in use and, with `spare`, one that waits.

    make: gives a child that is not started. prepare: initialises a started one, without timing
    anything. `begin` has a thread start the spare.
    """

    def __init__(
        self,
        make: Callable[[], SupervisedChild],
        prepare: Callable[[SupervisedChild], object],
        *,
        spare: bool,
    ) -> None:
        self._make, self._prepare = make, prepare
        self._wanted = spare
        self._failures = 0
        self._retired = False
        self._lock = threading.Lock()
        self._current = make()
        self._spare: SupervisedChild | None = None
        self._starter: threading.Thread | None = None

    @property
    def current(self) -> SupervisedChild:
        return self._current

    @property
    def spare_pid(self) -> int | None:
        """The process id of the spare once it is ready, for tests and people."""
        spare, starter = self._spare, self._starter
        busy = starter is not None and starter.is_alive()
        return spare.pid if spare is not None and not busy else None

    def ready(self) -> SupervisedChild:
        """The child in use, started. Raises WorkerLost when it cannot be."""
        if not self._current.alive:
            self.renew()
        start(self._current)
        return self._current

    def apart(self) -> SupervisedChild | None:
        """The spare, waited for if it is just starting. It stays the spare; None without one."""
        self.begin()
        if self._starter is not None:
            self._starter.join()
        spare = self._spare
        return spare if spare is not None and spare.alive else None

    def begin(self) -> None:
        """Start a spare in the background, unless there is one or none is wanted."""
        with self._lock:
            starting = self._starter is not None and self._starter.is_alive()
            if self._spare is not None and not starting and not self._spare.alive:
                self._spare = None
            if not self._wanted or self._retired or self._spare is not None:
                return
            self._spare = self._make()
            self._starter = threading.Thread(
                target=self._bring_up, args=(self._spare,), name="spare", daemon=True
            )
            self._starter.start()

    def renew(self) -> None:
        """End the child in use. The spare takes over; one that is just starting is waited for."""
        self._current.kill()
        if self._starter is not None:
            self._starter.join()
        with self._lock:
            spare, self._spare = self._spare, None
            if spare is not None and spare.alive:
                self._current = spare
            elif spare is not None:
                spare.retire()
        # A pool may have been closed by force between the two.
        if self._retired:
            self._current.retire()

    def drop_spare(self) -> None:
        """End the spare, also one that is just starting."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.retire()
        if self._starter is not None:
            self._starter.join()

    def retire(self) -> None:
        """Kill all and start no other, also from another thread."""
        self._retired = True
        self._current.retire()
        spare = self._spare
        if spare is not None:
            spare.retire()

    def close(self) -> None:
        self.drop_spare()
        self._current.close()

    def _bring_up(self, spare: SupervisedChild) -> None:
        try:
            start(spare)
            self._prepare(spare)
            self._failures = 0
        except Exception as error:
            spare.retire()
            if self._spare is spare and not self._retired:
                self._failures += 1
                self._wanted = self._failures < _FAILURES
                _log.info("no spare process: %s", one_line(f"{error}"))
        if self._retired:
            spare.retire()
