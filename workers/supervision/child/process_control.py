"""The system calls of the child side: death signals, subreapers, names, wake-ups by SIGCHLD."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, detached ones included."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """The name of the process in `ps` and `top`, cut to 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def wake_on_child_exit() -> tuple[int, int]:
    """The two ends of a pipe that becomes readable when a child of this process ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


def _prctl(option: int, value: int | bytes) -> None:
    """Linux's prctl. Other systems have none; there the reaper alone does the work."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
