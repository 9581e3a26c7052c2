"""One line on a terminal that rewrites itself and is erased at the end."""

from __future__ import annotations

import shutil
from typing import TextIO

from tuner.progress import Progress

_ERASE = "\r\x1b[K"


class TerminalLine:
    """A `Screen` on a stream that is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, progress: Progress, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
        self._stream.write(f"{_ERASE}{shown}")
        self._stream.flush()

    def end(self, text: str) -> None:
        self._stream.write(_ERASE)
        self._stream.flush()
