"""Warming up: run a candidate until the device is at its working clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

#: A device that was idle for longer has lowered its clock.
_IDLE_S = 0.05


class WarmUp:
    """Knows when the device last worked, so that a warm device is not warmed again."""

    def __init__(self) -> None:
        self._busy_at = -math.inf

    def mark_busy(self) -> None:
        """Record that the device has just worked."""
        self._busy_at = time.monotonic()

    def run(self, block: Callable[[], object], warm_ms: float) -> None:
        """Repeat the block until `warm_ms` have passed, unless the device has just worked."""
        if time.monotonic() - self._busy_at < _IDLE_S:
            return
        end = time.monotonic() + warm_ms / 1000
        while time.monotonic() < end:
            block()
        self.mark_busy()
