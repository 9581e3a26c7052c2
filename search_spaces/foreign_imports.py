"""Imports of code that others wrote: what it prints stays out of stdout, and it ends no process.

Commands write their listing to stdout, where a line that a module prints would break JSON.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def contain_foreign_code() -> Iterator[None]:
    """A context in which stdout is stderr, and `os._exit` in this thread raises SystemExit.

    Forked children and other threads keep `os._exit`.
    """
    leave, process, thread = os._exit, os.getpid(), threading.get_ident()

    def refuse(status: int) -> None:
        if os.getpid() != process or threading.get_ident() != thread:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse  # type: ignore[assignment]
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os._exit = leave
