"""What a supervised child prints: drained so that it can never block, and its end kept."""

from __future__ import annotations

import os
import threading

_TAIL_BYTES = 32 * 1024


class Output:
    """The end of what arrives at a descriptor, read by a thread that closes it."""

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
                del self._kept[:-_TAIL_BYTES]
        os.close(self._descriptor)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def finish(self) -> None:
        self._thread.join(timeout=2.0)

    def text(self) -> str:
        with self._lock:
            raw = bytes(self._kept)
        clean = raw.decode("utf-8", "replace").replace("\r", "\n")
        return "".join(c for c in clean if c in "\n\t" or c.isprintable())
