"""Warnings, once per condition. They are logged: a warning filter must not stop a launch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from ._text import printable

log = logging.getLogger("tuner.runtime")

_warned: set[Hashable] = set()
_lock = threading.Lock()


def warn_once(condition: Hashable, text: str) -> None:
    """Log a warning at the first occurrence of a condition, and at DEBUG level after that."""
    with _lock:
        is_first = condition not in _warned
        _warned.add(condition)
    log.log(logging.WARNING if is_first else logging.DEBUG, "tuner: %s", printable(text, 600))


def forget_warnings() -> None:
    """Warn again at the next occurrence of each condition."""
    with _lock:
        _warned.clear()
