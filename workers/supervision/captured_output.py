"""The output of a supervised process: read at once, so that printing never blocks; end kept."""

from __future__ import annotations

import os
import threading

_KEPT_BYTES = 32 * 1024
_FINISH_TIMEOUT_S = 2.0


class CapturedOutput:
    """The last 32 KiB that arrive at a descriptor. A thread reads it and closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="child-output", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while chunk := os.read(self._descriptor, 65536):
            with self._lock:
                self._kept += chunk
                del self._kept[:-_KEPT_BYTES]
        os.close(self._descriptor)

    def clear(self) -> None:
        """Forget what has arrived so far."""
        with self._lock:
            self._kept.clear()

    def finish(self) -> None:
        """Wait for the end of the output, at most two seconds."""
        self._thread.join(timeout=_FINISH_TIMEOUT_S)

    def text(self) -> str:
        """What is kept, without control characters."""
        with self._lock:
            raw = bytes(self._kept)
        clean = raw.decode("utf-8", "replace").replace("\r", "\n")
        return "".join(c for c in clean if c in "\n\t" or c.isprintable())
