"""Which process this is, told apart from every other one, and whether such a process is gone.

A host name and a process number are not enough: containers share both, and numbers are given
again. An identity names the boot of the machine, the namespace in which the number counts, the
number, and the moment of the start.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity() -> str:
    """This process; empty text where the system cannot tell it apart, as on other than Linux."""
    return _identity(os.getpid())


def gone(process: str) -> bool:
    """Whether the process of that identity has provably ended.

    False while it lives, and for one of another machine, container or boot, which cannot be seen
    from here.
    """
    here = identity().split()
    there = process.split()
    if len(here) != 4 or len(there) != 4 or here[:2] != there[:2]:
        return False
    try:
        os.kill(int(there[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # somebody else's, so it lives
    state, started = _state(there[2])
    return state in ("Z", "X") or (started != "" and started != there[3])


@cache
def _identity(pid: int) -> str:
    try:
        # /proc of another namespace would tell about other processes.
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
