"""The reaper: waits for its worker's end or its caller's, then kills and removes what is left.

It runs no code of a job, so that nothing a job does can stop it. The caller's end is the end of
file on the lifeline, which a `kill -9` of the caller causes too. As a child subreaper it also finds
descendants that detached themselves.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from workers.processes.child.messages import EXIT_STATUS, wake_on_child_exit

_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.002


def supervise(worker: int, lifeline: int, exit_status: int, scratch: str) -> None:
    """Wait for the end, kill all descendants, remove `scratch`, report the worker's exit status.

    worker: its process id. lifeline, exit_status: descriptors.
    """
    _release_output()
    status = _wait(worker, lifeline)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    remaining = True
    while remaining and time.monotonic() < deadline:
        for pid in _descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        remaining, collected = _collect(worker)
        status = collected if status is None else status
        if remaining:
            time.sleep(_POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)
    if status is not None:
        os.write(exit_status, EXIT_STATUS.pack(os.waitstatus_to_exitcode(status)))


def _release_output() -> None:
    """Close this process's ends of the output pipe, so that the pipe ends with the worker."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _wait(worker: int, lifeline: int) -> int | None:
    """Wait until the worker ends (its wait status) or the lifeline does (None)."""
    wake_read, _ = wake_on_child_exit()
    while True:
        _, status = _collect(worker)
        if status is not None:
            return status
        ready, _, _ = select.select([lifeline, wake_read], [], [])
        if lifeline in ready:
            return None
        os.read(wake_read, 4096)


def _collect(worker: int) -> tuple[bool, int | None]:
    """Collect ended children: whether any remains, and the worker's status if it was collected."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status
        if pid == 0:
            return True, status
        if pid == worker:
            status = code


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _processes():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def children(parents: Collection[int]) -> list[int]:
    """The living children of these processes."""
    return [pid for pid, parent, _ in _processes() if parent in parents]


def kill_session(session: int) -> None:
    """Kill all processes of a session."""
    for pid, _, its_session in _processes():
        if its_session == session:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int, int]]:
    """(process id, parent's process id, session) of every visible process."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                # The name stands in brackets and may hold anything; fields follow the last one.
                fields = stat.read().rpartition(b")")[2].split()
                yield int(entry), int(fields[1]), int(fields[3])
