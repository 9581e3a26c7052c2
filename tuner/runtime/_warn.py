"""One line per condition, through logging: a warning filter set to raise must not stop a launch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from ._read import printable

log = logging.getLogger("tuner.runtime")

_said: set[Hashable] = set()
_lock = threading.Lock()


def warn_once(condition: Hashable, text: str) -> None:
    """Log a warning the first time a condition is met, and at debug level from then on."""
    with _lock:
        first = condition not in _said
        _said.add(condition)
    log.log(logging.WARNING if first else logging.DEBUG, "tuner: %s", printable(text, 600))


def forget() -> None:
    """Say everything again when it is met again."""
    with _lock:
        _said.clear()
