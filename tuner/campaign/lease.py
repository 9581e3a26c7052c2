"""The lease of a run: one driver holds it, and a driver may take over the run of a dead one.

The database refuses every write of a driver that does not hold its run. A driver that is wrongly
taken for dead therefore loses time and no result.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from results_db.stored_records import RunInfo, RunStatus
from search_spaces.errors import TunerError

if TYPE_CHECKING:
    from results_db import Store

#: Seconds between heartbeats, and seconds without one after which a holder counts as dead.
BEAT_S = 15.0
DEAD_AFTER_S = 120.0
#: Lease tokens of the drivers that run in this process.
_active: set[str] = set()
_log = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def process_identity() -> str:
    """The identity of this process; empty where the system provides none (not Linux)."""
    return _identity(os.getpid())


def process_lives(process: str) -> bool | None:
    """Whether the process of that identity is alive; None where nothing here can tell.

    A process of another machine, container or boot is invisible here. A stopped one lives.
    """
    here = process_identity().split()
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


def holder() -> str:
    """This driver in messages: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def check(run: RunInfo) -> None:
    """Raise `TunerError` while a live driver holds the run."""
    if alive(run):
        raise _make_held_error(run)


def abandoned(run: RunInfo) -> bool:
    """Whether the run is recorded as running although its driver is dead."""
    return run.status == RunStatus.RUNNING and not alive(run)


def take(store: Store, run: RunInfo) -> Store:
    """Take the lease of a run, also from a dead driver.

    Returns the store through which this driver writes until `leave`. Raises `TunerError` while a
    live driver holds the run.
    """
    check(run)
    token = secrets.token_hex(16)
    if not store.take_run(run, token, holder(), process_identity()):
        found = store.run(run.run_id)
        # The first attempt may have succeeded although its answer was lost.
        if found.lease != token:
            raise _make_held_error(found)
    if run.holder:
        _log.info("run %d is taken over from %s", run.run_id, run.holder)
    _active.add(token)
    return store.under(token)


def leave(store: Store) -> None:
    """Record that the driver of this store has ended."""
    _active.discard(store.lease)


def alive(run: RunInfo) -> bool:
    """Whether the driver that holds the run is alive, as far as this machine can know.

    What this machine sees of the driver's process comes before any clock: while the process lives,
    the run is held, and as soon as it has ended, the run is free. Where the process is invisible,
    on another machine or in another container, the driver counts as alive until `DEAD_AFTER_S`
    after its last heartbeat, by the database's clock.
    """
    if not run.holder:
        return False
    living = process_lives(run.process)
    if living is None:
        return run.silent_s is not None and run.silent_s < DEAD_AFTER_S
    if run.process == process_identity():
        return run.lease in _active
    return living


def _make_held_error(run: RunInfo) -> TunerError:
    if not run.holder:
        return TunerError(
            f"run {run.run_id} of {run.campaign!r} has just been changed by another driver",
            "`tuner status` shows its state; rerun the command",
        )
    visible = process_lives(run.process) is not None
    return TunerError(
        f"run {run.run_id} of {run.campaign!r} is under way at {run.holder}",
        "wait for it, or end that process; the run is free as soon as the process has ended"
        if visible
        else f"wait for it or stop it; {DEAD_AFTER_S:.0f} s after its last heartbeat another "
        "driver can take the run over",
    )
