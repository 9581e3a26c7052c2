"""Signs of life: what a supervised process is working on at the moment.

    note("candidate 3")

The process that supervises it learns whom to blame for a crash, and that a long job is not a hang.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The same text again so soon says nothing new.
_REPEAT_S = 0.02


def note(text: str) -> None:
    """Tell the supervising process, if there is one, what is worked on from now on."""
    line = _line
    if line is not None:
        line.send(text)


@contextmanager
def sent_by(send: Callable[[str], None]) -> Iterator[None]:
    """Let notes of this process, but of none forked from it, be given to `send` meanwhile."""
    global _line
    _line = _Line(send)
    try:
        yield
    finally:
        _line.end()
        _line = None


class _Line:
    def __init__(self, send: Callable[[str], None]) -> None:
        self._send, self._pid, self._lock = send, os.getpid(), threading.Lock()
        self._open, self._last, self._at = True, "", 0.0

    def send(self, text: str) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:  # after the reply nobody listens any more
            now = time.monotonic()
            if self._open and (text != self._last or now - self._at >= _REPEAT_S):
                self._send(text)
                self._last, self._at = text, now

    def end(self) -> None:
        with self._lock:
            self._open = False


_line: _Line | None = None
