"""Processors that timed CPU runners and spare builders use in turn.

A CPU runner is idle most of the time: a variant compiles for a second or two and is timed for a
tenth of that. Spare builders compile on its processors meanwhile. No spare builder works while a
runner measures, and a runner that has a job waits until their present builds have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SharedProcessors:
    """The turns of runners and spare builders; runners go first. For several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: Runners that measure or wait until they may.
        self._measuring = 0
        self._building = 0
        self._closed = False

    @property
    def claimed(self) -> bool:
        """Whether a runner measures or waits until it may."""
        return self._measuring > 0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A block in which no spare builder works."""
        with self._changed:
            self._measuring += 1
            self._changed.wait_for(lambda: not self._building or self._closed)
        try:
            yield
        finally:
            with self._changed:
                self._measuring -= 1
                self._changed.notify_all()

    def begin_build(self, ready: Callable[[], bool]) -> bool:
        """Wait for a turn of a spare builder while there is a build; whether there is one.

        ready: whether there is a build; `notify` says when that may have changed. False after
        `close`. `end_build` ends the turn.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (not self._measuring and ready()))
            if self._closed:
                return False
            self._building += 1
            return True

    def end_build(self) -> None:
        """End a turn of a spare builder."""
        with self._changed:
            self._building -= 1
            self._changed.notify_all()

    def notify(self) -> None:
        """Let waiting builders look whether there is a build."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
