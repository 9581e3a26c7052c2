"""An identity of a process that no other process has, and whether that process is alive.

Host name and process number do not suffice: containers share both, and the system reuses numbers.
An identity consists of the boot of the machine, the PID namespace, the process number and the time
of its start.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity() -> str:
    """The identity of this process; empty where the system provides none (not Linux)."""
    return _identity(os.getpid())


def lives(process: str) -> bool | None:
    """Whether the process of that identity is alive; None where nothing here can tell.

    A process of another machine, container or boot is invisible here. A stopped one lives.
    """
    here = identity().split()
    there = process.split()
    if len(here) != 4 or len(there) != 4 or here[:2] != there[:2]:
        return None
    try:
        os.kill(int(there[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and belongs to another user
    state, started = _state(there[2])
    if not state:
        return None  # the system hides the processes of other users
    return state not in ("Z", "X") and started == there[3]


@cache
def _identity(pid: int) -> str:
    try:
        # /proc of another namespace describes other processes.
        if os.readlink("/proc/self") != f"{pid}":
            return ""
        namespace = os.stat("/proc/self/ns/pid").st_ino
        boot = _BOOT.read_text().strip()
    except OSError:
        return ""
    _, started = _state(f"{pid}")
    return f"{boot} {namespace} {pid} {started}" if started else ""


def _state(pid: str) -> tuple[str, str]:
    """A process's state letter and its start in clock ticks after the boot; empty if unreadable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
