"""A thread that shows progress again every second, with the time that has passed."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Protocol, Self

from tuner.base.inert_text import inert
from tuner.progress import Progress

_EVERY_S = 0.5
#: The least time between two pictures.
_LEAST_S = 0.1


class Screen(Protocol):
    """Where progress is shown. It raises OSError or ValueError once its reader has left."""

    def show(self, progress: Progress, text: str) -> None:
        """text: the progress in one line."""
        ...

    def end(self, text: str) -> None:
        """The work is over. text: how it ended, in one line."""
        ...


class Ticker:
    """Shows the last progress on a screen until the block ends. It may be called by any thread."""

    def __init__(self, screen: Screen) -> None:
        self._screen: Screen | None = screen
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._drawn_s = 0.0
        self._last = Progress.of_stage("starting")
        #: `left_s` of the last progress, and when it came.
        self._left: tuple[float | None, float] = (None, 0.0)
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._draw()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        elapsed = _seconds(time.monotonic() - self._began_s)
        with self._lock:
            if self._screen is not None:
                try:
                    how = "done in" if error is None else "stopped after"
                    self._screen.end(f"{how} {elapsed}")
                except (OSError, ValueError):
                    self._screen = None

    def __call__(self, progress: Progress) -> None:
        now_s = time.monotonic()
        changed = progress.stage != self._last.stage
        self._last, self._left = progress, (progress.left_s, now_s)
        if changed or now_s - self._drawn_s >= _LEAST_S:
            self._draw()

    def _tick(self) -> None:
        while not self._over.wait(_EVERY_S):
            if time.monotonic() - self._drawn_s >= _EVERY_S:
                self._draw()

    def _draw(self) -> None:
        with self._lock:
            if self._screen is None:
                return
            self._drawn_s = now_s = time.monotonic()
            text = f"{inert(self._last.activity)}  {_seconds(now_s - self._began_s)}"
            left_s, at_s = self._left
            left_s = None if left_s is None else left_s - (now_s - at_s)
            if left_s is not None and left_s >= 1.0:
                text += f", about {_seconds(left_s)} left"
            try:
                self._screen.show(self._last, text)
            except (OSError, ValueError):
                self._screen = None


def _seconds(value: float) -> str:
    """`4 s`, `1 min 05 s`, `2 h 01 min`"""
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
