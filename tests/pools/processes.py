"""Finding and killing descendants of a test process, by /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.processes.fork_server import ForkServer
from workers.processes.supervised_child import SupervisedChild

#: How long tests wait for an event that must come, and for an answer: no outcome hangs on it.
LIMIT_S = 200.0


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    found[int(entry.name)] = int(fields[1])
    return found


def below(root: int) -> list[int]:
    """All living descendants, parents before children."""
    tree = parents()
    found, queue = [], [root]
    while queue:
        children = [pid for pid, parent in tree.items() if parent == queue[0]]
        queue = queue[1:] + children
        found += children
    return found


def named(root: int, name: str) -> list[int]:
    """The processes `name` below `root`: its own fork server if it has one, reaper and worker."""
    return [pid for pid in forked(root) if process_name(pid) == name[:15]]


def forked(root: int) -> list[int]:
    """All fork servers, reapers and workers below `root`."""
    return [pid for pid in below(root) if "workers.processes.server_process" in title(pid)]


def process_name(pid: int) -> str:
    """The name that `ps` shows."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def title(pid: int) -> str:
    """The command line as the process shows it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def asleep(pid: int) -> bool:
    """Whether a thread of the process is inside `time.sleep`."""
    places = []
    for task in Path(f"/proc/{pid}/task").glob("*/wchan"):
        with suppress(OSError):
            places.append(task.read_text())
    return any("nanosleep" in place for place in places)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    return pid in parents()


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def child_of(
    factory: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "child",
    paths: tuple[str, ...] = (),
    cwd: str | None = None,
    **options: Any,
) -> SupervisedChild:
    """A supervised child with a fork server of its own."""
    server = ForkServer(name, paths=paths, cwd=cwd)
    return SupervisedChild(
        factory, kwargs, server=server, own_server=True, name=name, paths=paths, **options
    )
