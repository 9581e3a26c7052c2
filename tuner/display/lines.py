"""Plain lines for logs: one for each stage, and one every few seconds of a long stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from tuner.progress import Progress

_AGAIN_S = 10.0


class LineScreen:
    """A `Screen` on a stream that is no terminal."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._stage = ""
        self._next_s = 0.0

    def show(self, progress: Progress, text: str) -> None:
        now_s = self._clock()
        stage = progress.stage if progress.tasks_total else progress.activity
        if stage != self._stage or now_s >= self._next_s:
            self._stage, self._next_s = stage, now_s + _AGAIN_S
            self._write(text)

    def end(self, text: str) -> None:
        self._write(text)

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()
