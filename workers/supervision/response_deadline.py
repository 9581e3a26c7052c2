"""The end of the wait for a reply: the request's deadline, or too long without a heartbeat.

While the process is suspended, both stand still.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping


class ResponseDeadline:
    """The deadline of one request, moved by the heartbeats that arrive.

    deadline: on `time.monotonic`, in seconds. max_silence_s: the longest time without a heartbeat
    after the first one, None for no limit. max_silence_after: other limits, in seconds, by the
    first word of the last activity.
    """

    def __init__(
        self,
        deadline: float,
        max_silence_s: float | None = None,
        max_silence_after: Mapping[str, float] | None = None,
    ) -> None:
        self._deadline, self._default_silence_s = deadline, max_silence_s
        self._max_silence_after = max_silence_after or {}
        self._last_at = time.monotonic()
        self.last_activity = ""
        #: Seconds of the request in which the process was suspended, until the last `resume`.
        self.suspended_s = 0.0
        self._lock = threading.Lock()
        self._suspended_at: float | None = None

    def heartbeat(self, activity: str) -> None:
        """Take in a heartbeat that has just arrived."""
        self.last_activity, self._last_at = activity, time.monotonic()

    def suspend(self) -> None:
        """Count no time until `resume`. For any thread."""
        with self._lock:
            if self._suspended_at is None:
                self._suspended_at = time.monotonic()

    def resume(self) -> None:
        """Count time again. For any thread."""
        with self._lock:
            if self._suspended_at is not None:
                stood_s = time.monotonic() - self._suspended_at
                self._suspended_at = None
                self._deadline += stood_s
                self._last_at += stood_s
                self.suspended_s += stood_s

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat, or since the request."""
        with self._lock:
            return (self._suspended_at or time.monotonic()) - self._last_at

    @property
    def max_silence_s(self) -> float | None:
        """The longest silence after the last activity; None for no limit."""
        if not self.last_activity:
            return None
        return self._max_silence_after.get(
            self.last_activity.partition(" ")[0], self._default_silence_s
        )

    @property
    def limited_by_silence(self) -> bool:
        """Whether the limit on silence ends before the request's own deadline."""
        with self._lock:
            return self._ends_at < self._deadline

    @property
    def until(self) -> float:
        """The time at which waiting ends unless it is moved meanwhile, on `time.monotonic`."""
        with self._lock:
            stood_s = time.monotonic() - self._suspended_at if self._suspended_at else 0.0
            return self._ends_at + stood_s

    @property
    def _ends_at(self) -> float:
        silence_s = self.max_silence_s
        if silence_s is None:
            return self._deadline
        return min(self._deadline, self._last_at + silence_s)
