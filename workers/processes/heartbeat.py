"""Heartbeats: a supervised process reports what it is working on.

    heartbeat("candidate 3")

The parent process uses the last activity to find the candidate at fault when the process is lost,
and the time since then to tell a hang from a long job. By the same way a process asks for the
processors before it times something on them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The same activity is not reported twice within this time.
_REPEAT_S = 0.02


def heartbeat(activity: str) -> None:
    """Report to the parent process, if there is one, what this process starts to work on."""
    sender = _sender
    if sender is not None:
        sender.send(activity)


def await_processors() -> None:
    """Wait until this process has the processors alone, which lasts until its reply.

    Returns at once without a parent process, and where that has no other work on them.
    """
    sender = _sender
    if sender is not None:
        sender.ask()


@contextmanager
def sent_by(send: Callable[[str], None], ask: Callable[[], None] | None = None) -> Iterator[None]:
    """Pass heartbeats of this process to `send` inside the block; not those of forked processes.

    ask: asks for the processors and returns with the answer.
    """
    global _sender
    _sender = _Sender(send, ask)
    try:
        yield
    finally:
        _sender.close()
        _sender = None


class _Sender:
    def __init__(self, send: Callable[[str], None], ask: Callable[[], None] | None) -> None:
        self._send, self._ask = send, ask
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._open, self._last, self._last_at = True, "", 0.0

    def send(self, activity: str) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:  # nothing may follow the reply
            now = time.monotonic()
            if self._open and (activity != self._last or now - self._last_at >= _REPEAT_S):
                self._send(activity)
                self._last, self._last_at = activity, now

    def ask(self) -> None:
        if os.getpid() == self._pid and self._ask is not None:
            with self._lock:
                if self._open:
                    self._ask()

    def close(self) -> None:
        with self._lock:
            self._open = False


_sender: _Sender | None = None
