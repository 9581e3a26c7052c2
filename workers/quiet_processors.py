"""Processors that are timed, and workers that stand still meanwhile.

A variant that is timed on processors shares them with no other work: builders with their compilers,
checks of declarations and verifications are suspended for that time, and the driver asks its
strategy before or afterwards. The rule holds for the machine, by two of its locks:

    processors-timed      held alone by whoever times, or waits until it may
    processors-quiet      shared by the processes whose workers run, and given up while they stand
                          still; whoever times takes it alone

The lock of the device (`workers.machine_lock.DeviceLock`) is around the whole job. A process that
does not give way, such as a stopped one, is waited for half a second.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from workers.machine_lock import MachineLock

_TIMED, _QUIET = "processors-timed", "processors-quiet"
#: How often a process looks whether another one times.
_LOOK_S = 0.02
_POLL_S = 0.002
_PATIENCE_S = 0.5
#: The longest wait for other threads of this process to end their work.
_WORK_S = 10.0
_log = logging.getLogger(__name__)
_changed = threading.Condition()
#: Jobs of this process that time on processors, or wait until they may.
_timing = 0
#: Blocks of `at_work`.
_at_work = 0
_yielders: list[Yielder] = []


class Suspendable(Protocol):
    """A worker that can stand still. Its time limits do not count that time."""

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


@contextmanager
def quiet(stopped: Callable[[], bool]) -> Iterator[None]:
    """A block that has the machine's processors alone; entered in any case once `stopped`."""
    global _timing
    timed, others = MachineLock(_TIMED), MachineLock(_QUIET)
    with _changed:
        _timing += 1
        _changed.notify_all()
    try:
        _wait_for(timed, stopped, None)
        with _changed:
            _changed.wait_for(lambda: not _at_work or stopped(), _WORK_S)
            _changed.wait_for(lambda: all(one.suspended for one in _yielders), _PATIENCE_S)
        if not _wait_for(others, stopped, _PATIENCE_S):
            _log.debug("a process does not give way")
        yield
    finally:
        others.close()
        timed.close()
        # After the locks are free, or the workers would stand still until the next look.
        with _changed:
            _timing -= 1
            _changed.notify_all()


@contextmanager
def at_work() -> Iterator[bool]:
    """A block of work of this process on the processors; false while they are timed.

    Whoever is to time waits for the end of a block that was entered as true.
    """
    global _at_work
    with _changed:
        free = not _timing and not any(one.suspended for one in _yielders)
        _at_work += free
    try:
        yield free
    finally:
        with _changed:
            _at_work -= free
            _changed.notify_all()


def _wait_for(lock: MachineLock, stopped: Callable[[], bool], most_s: float | None) -> bool:
    """Wait for a lock and take it; false where it was not taken."""
    ends_at = math.inf if most_s is None else time.monotonic() + most_s
    while not lock.take():
        if stopped() or time.monotonic() > ends_at:
            return False
        time.sleep(_POLL_S)
    return True


class Yielder:
    """Has workers of this process stand still while processors are timed, by whichever process."""

    def __init__(self) -> None:
        self._workers: list[Suspendable] = []
        self.suspended = False
        self._closed = False
        self._timed, self._quiet = MachineLock(_TIMED), MachineLock(_QUIET)
        self._thread = threading.Thread(target=self._run, name="yielder", daemon=True)

    def start(self, workers: Iterable[Suspendable]) -> None:
        """Begin with these workers."""
        with _changed:
            self._workers = list(workers)
            _yielders.append(self)
        self._thread.start()

    def add(self, worker: Suspendable) -> None:
        """Another worker."""
        with _changed:
            self._workers.append(worker)
            if self.suspended:
                worker.suspend()

    def close(self) -> None:
        """End, and leave the workers as they are: their end comes next."""
        with _changed:
            if self in _yielders:
                _yielders.remove(self)
            self._closed = True
            _changed.notify_all()

    # -- in the thread -----------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            with _changed:
                while not self._closed:
                    if self.suspended != self._wanted():
                        self._change()
                    _changed.wait(_LOOK_S)
        finally:
            self._timed.close()
            self._quiet.close()

    def _wanted(self) -> bool:
        """Whether the workers are to stand still. Taking `_quiet` says to others that they run."""
        if _timing or self._timed.taken:
            return True
        return not self._quiet.take(shared=True)

    def _change(self) -> None:
        self.suspended = not self.suspended
        for worker in self._workers:
            if self.suspended:
                worker.suspend()
            else:
                worker.resume()
        if self.suspended:
            self._quiet.release()
        _changed.notify_all()
