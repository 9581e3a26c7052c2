"""Processors that are timed, and workers that stand still meanwhile.

A variant that is timed on processors shares them with no other work: builders with their compilers,
checks and verifications are suspended while a job times or checks there, and the driver asks its
strategy afterwards. The rule holds for the machine:

    processors            a `DeviceLock`: one job at a time times on the processors
    processors-quiet      held by each process whose workers run, and given up while they stand
                          still; whoever times takes it alone

A process that does not give way, such as a stopped one, is waited for half a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from workers.machine_lock import DeviceLock, MachineLock

_NAME, _QUIET = "processors", "processors-quiet"
#: How often a process looks whether another one times.
_LOOK_S = 0.02
_POLL_S = 0.002
_PATIENCE_S = 0.5
_log = logging.getLogger(__name__)
_changed = threading.Condition()
#: Jobs of this process that time on processors, or wait until the workers stand still.
_measuring = 0
_yielders: list[Yielder] = []


class Suspendable(Protocol):
    """A worker that can stand still. Its time limits do not count that time."""

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


@contextmanager
def measuring(stopped: Callable[[], bool]) -> Iterator[None]:
    """A block that has the machine's processors for itself; entered in any case once `stopped`."""
    global _measuring
    counted = False
    try:
        with DeviceLock(_NAME, "the processors of this machine").held(stopped):
            quiet = MachineLock(_QUIET)
            try:
                with _changed:
                    _measuring, counted = _measuring + 1, True
                    _changed.notify_all()
                    _changed.wait_for(lambda: all(one.suspended for one in _yielders), _PATIENCE_S)
                ends_at = time.monotonic() + _PATIENCE_S
                while not quiet.take() and not stopped():
                    if time.monotonic() > ends_at:
                        _log.debug("some process does not give way")
                        break
                    time.sleep(_POLL_S)
                yield
            finally:
                quiet.close()
    finally:
        # After the locks are free, or the workers would stand still until the next look.
        with _changed:
            _measuring -= counted
            _changed.notify_all()


class Yielder:
    """Has workers of this process stand still while processors are timed, by whichever process."""

    def __init__(self) -> None:
        self._workers: list[Suspendable] = []
        self.suspended = False
        self._closed = False
        self._timed, self._quiet = MachineLock(_NAME), MachineLock(_QUIET)
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
        if _measuring or self._timed.taken:
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
