"""Imports of code that others wrote: what it prints stays out of stdout, and it ends no process.

Commands write their listing to stdout, where a line that a module prints would break JSON.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_end_process = os._exit
_change = threading.Lock()
#: Contexts that are open, by the thread that opened them.
_open: Counter[int] = Counter()
#: What stdout is outside of them, and for other threads.
_stdout = sys.stdout


class _Stdout:
    """Stdout for all threads but those in `contain_foreign_code`, for which it is stderr."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr if _open[threading.get_ident()] else _stdout, name)


def _exit_or_raise(status: int) -> None:
    if not _open[threading.get_ident()]:
        _end_process(status)
    raise SystemExit(f"os._exit({status})")


@contextmanager
def contain_foreign_code() -> Iterator[None]:
    """A context in which stdout is stderr, and `os._exit` raises SystemExit.

    Forked children and other threads keep stdout and `os._exit`.
    """
    global _stdout
    thread = threading.get_ident()
    with _change:
        if not _open.total():
            _stdout, sys.stdout = sys.stdout, _Stdout()
            os._exit = _exit_or_raise  # type: ignore[assignment]
        _open[thread] += 1
    try:
        yield
    finally:
        with _change:
            if _open[thread]:  # A child that was forked meanwhile has forgotten the context.
                _open[thread] -= 1
                if not _open.total():
                    _open.clear()
                    _restore()


def _restore() -> None:
    os._exit = _end_process
    sys.stdout = _stdout


def _forget_contexts() -> None:
    global _change
    _change = threading.Lock()
    if _open.total():
        _open.clear()
        _restore()


os.register_at_fork(after_in_child=_forget_contexts)
