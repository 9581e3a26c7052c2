"""A supervised child in use and a standby: a second, initialised child that can replace it at once.

Starting a device process and opening its device takes from a third of a second to several seconds.
The standby has done both. It also does the work that needs a process without a history, such as
confirmations.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.processes.crash_retry import start
from workers.processes.supervised_child import SupervisedChild
from workers.processes.worker_lost import one_line

_log = logging.getLogger(__name__)
#: After this many failed starts in a row, perhaps for lack of memory, no standby is started again.
_MAX_FAILURES = 2


class ChildWithStandby:
    """One child in use and, if `standby`, a second one that is ready to replace it.

    make: returns a child that is not started. prepare: initialises a started child without timing
    anything. All methods are for one thread unless they say otherwise; the standby changes during
    its calls only.
    """

    def __init__(
        self,
        make: Callable[[], SupervisedChild],
        prepare: Callable[[SupervisedChild], object],
        *,
        standby: bool,
    ) -> None:
        self._make, self._prepare = make, prepare
        self._enabled = standby
        self._failures = 0
        self._retired = False
        self._lock = threading.Lock()
        self._current = make()
        self._standby: SupervisedChild | None = None
        #: A child that is starting, or has started and is not the standby yet.
        self._next: SupervisedChild | None = None
        self._starter: threading.Thread | None = None

    @property
    def current(self) -> SupervisedChild:
        """The child in use; it may have ended."""
        return self._current

    @property
    def standby_pid(self) -> int | None:
        """The process id of the standby when it is ready, for tests and people."""
        child = self.ready_standby
        return child.pid if child is not None else None

    @property
    def ready_standby(self) -> SupervisedChild | None:
        """The standby when it is ready, without waiting. For any thread."""
        following = self._next
        return following if following is not None and not self._starting else self._standby

    @property
    def has_standby(self) -> bool:
        """Whether there is a standby or one is starting. For any thread."""
        return self._standby is not None or self._next is not None

    @property
    def retired(self) -> bool:
        """Whether all are told to end for good. For any thread."""
        return self._retired

    def ready(self) -> SupervisedChild:
        """The child in use, started. Raises WorkerLost if none can be started."""
        if not self._current.alive:
            self.replace_current()
        start(self._current)
        return self._current

    def standby(self) -> SupervisedChild | None:
        """The standby, after waiting for its start. It stays the standby. None if there is none."""
        self.ensure_standby()
        if self._standby is None:
            self._finish_start()
        return self._standby

    def newer_standby(self) -> SupervisedChild | None:
        """A standby started after the present one, after waiting for it; None if none starts."""
        before = self._standby
        self.renew_standby()
        self._finish_start()
        if self._standby is before:
            self.drop_standby()
        return self._standby

    def ensure_standby(self) -> None:
        """Start a standby in the background, unless there is one or standbys are turned off."""
        self._promote_started()
        if self._standby is None:
            self.renew_standby()

    def renew_standby(self) -> None:
        """Start another standby in the background, unless one is starting.

        The present one serves until then.
        """
        with self._lock:
            if not self._enabled or self._retired or self._next is not None:
                return
            self._next = self._make()
            self._starter = threading.Thread(
                target=self._start_next, args=(self._next,), name="standby", daemon=True
            )
            self._starter.start()

    def replace_current(self) -> None:
        """End the child in use and put the standby in its place, also one that is just starting."""
        self._current.kill()
        self._promote_started()
        if self._standby is None:
            self._finish_start()
        with self._lock:
            if self._standby is not None:
                self._current.retire()
                self._current, self._standby = self._standby, None
                _log.info("the standby process %s replaces the one in use", self._current.pid)
        # A forced close of the pool may have come in between.
        if self._retired:
            self._current.retire()

    def drop_standby(self) -> None:
        """End the standby, also one that is just starting."""
        with self._lock:
            ended = [self._standby, self._next]
            self._standby = self._next = None
        _retire(*ended)
        if self._starter is not None:
            self._starter.join()

    def begin_kill(self) -> None:
        """Begin to retire: both are killed while the caller continues. For any thread."""
        self._retired = True
        for child in (self._current, self._standby, self._next):
            if child is not None:
                child.begin_kill()

    def retire(self) -> None:
        """Kill both and start no other. For any thread."""
        self.begin_kill()
        _retire(self._current, self._standby, self._next)

    def close(self) -> None:
        """End both; the child in use may close its object."""
        self.drop_standby()
        self._current.close()

    @property
    def _starting(self) -> bool:
        return self._starter is not None and self._starter.is_alive()

    def _finish_start(self) -> None:
        """Wait for a start that is under way."""
        if self._starter is not None:
            self._starter.join()
        self._promote_started()

    def _promote_started(self) -> None:
        """Make a child that has started the standby, and forget a standby that has died."""
        with self._lock:
            ended = []
            if self._next is not None and not self._starting:
                ended.append(self._standby if self._next.alive else self._next)
                self._standby = self._next if self._next.alive else self._standby
                self._next = None
            if self._standby is not None and not self._standby.alive:
                ended.append(self._standby)
                self._standby = None
        _retire(*ended)

    def _start_next(self, child: SupervisedChild) -> None:
        try:
            start(child)
            self._prepare(child)
            self._failures = 0
        except Exception as error:
            child.retire()
            if self._next is child and not self._retired:
                self._failures += 1
                self._enabled = self._failures < _MAX_FAILURES
                _log.info("no standby process: %s", one_line(f"{error}"))
        if self._retired:
            child.retire()


def _retire(*children: SupervisedChild | None) -> None:
    for child in children:
        if child is not None:
            child.retire()
