"""A supervised child and a second one, already initialised, that takes over when the first is gone.

A device process has to be forked and to open its device, and seconds go by where its libraries are
not loaded before (`workers.supervision.fork_server`). The standby has done so, and meanwhile does
what must not be done by the first: what needs a process without a history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.build.process_builder import one_line, start
from workers.supervision.supervised_child import SupervisedChild

_log = logging.getLogger("tuner.workers")
#: A standby that cannot be had this often in a row, perhaps for want of memory, is done without.
_FAILURES = 2


class StandbyChild:
    """One child in use and, with `standby`, one that waits.

    make: gives a child that is not started. prepare: initialises a started one, without timing
    anything. `begin` has a thread start the standby; `refresh` has it start another in its place.
    All but `retire` and `standby_pid` are for one thread, which sees a standby change under its
    calls only.
    """

    def __init__(
        self,
        make: Callable[[], SupervisedChild],
        prepare: Callable[[SupervisedChild], object],
        *,
        standby: bool,
    ) -> None:
        self._make, self._prepare = make, prepare
        self._wanted = standby
        self._failures = 0
        self._retired = False
        self._lock = threading.Lock()
        self._current = make()
        self._standby: SupervisedChild | None = None
        #: being started, or up and to become the standby
        self._next: SupervisedChild | None = None
        self._starter: threading.Thread | None = None

    @property
    def current(self) -> SupervisedChild:
        return self._current

    @property
    def standby_pid(self) -> int | None:
        """The process id of the standby once it is ready, for tests and people."""
        coming = self._next
        child = coming if coming is not None and not self._starting else self._standby
        return child.pid if child is not None else None

    def ready(self) -> SupervisedChild:
        """The child in use, started. Raises WorkerLost when it cannot be."""
        if not self._current.alive:
            self.renew()
        start(self._current)
        return self._current

    def apart(self) -> SupervisedChild | None:
        """The standby, waited for if it is just starting. It stays the standby; None without
        one."""
        self.begin()
        if self._standby is None:
            self._settle()
        return self._standby

    def another(self) -> SupervisedChild | None:
        """A standby that was started after the present one, waited for; None where none can be."""
        before = self._standby
        self.refresh()
        self._settle()
        if self._standby is before:
            self.drop_standby()
        return self._standby

    def begin(self) -> None:
        """Start a standby in the background, unless there is one or none is wanted."""
        self._adopt()
        if self._standby is None:
            self.refresh()

    def refresh(self) -> None:
        """Start another standby in the background, unless one is coming. The present one serves
        until that is up."""
        with self._lock:
            if not self._wanted or self._retired or self._next is not None:
                return
            self._next = self._make()
            self._starter = threading.Thread(
                target=self._bring_up, args=(self._next,), name="standby", daemon=True
            )
            self._starter.start()

    def renew(self) -> None:
        """End the child in use. The standby takes over; one that is just starting is waited for."""
        self._current.kill()
        self._adopt()
        if self._standby is None:
            self._settle()
        with self._lock:
            if self._standby is not None:
                self._current.retire()
                self._current, self._standby = self._standby, None
        # A pool may have been closed by force between the two.
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

    def retire(self) -> None:
        """Kill all and start no other, also from another thread."""
        self._retired = True
        _retire(self._current, self._standby, self._next)

    def close(self) -> None:
        self.drop_standby()
        self._current.close()

    @property
    def _starting(self) -> bool:
        return self._starter is not None and self._starter.is_alive()

    def _settle(self) -> None:
        """Wait for whoever is starting."""
        if self._starter is not None:
            self._starter.join()
        self._adopt()

    def _adopt(self) -> None:
        """Let who has come up take the standby's place, and forget a standby that has died."""
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

    def _bring_up(self, child: SupervisedChild) -> None:
        try:
            start(child)
            self._prepare(child)
            self._failures = 0
        except Exception as error:
            child.retire()
            if self._next is child and not self._retired:
                self._failures += 1
                self._wanted = self._failures < _FAILURES
                _log.info("no standby process: %s", one_line(f"{error}"))
        if self._retired:
            child.retire()


def _retire(*children: SupervisedChild | None) -> None:
    for child in children:
        if child is not None:
            child.retire()
