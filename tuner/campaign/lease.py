"""One driver per run: which one holds it, and when a run of a dead driver may be taken over.

The database refuses every write of a driver that does not hold its run. A wrong guess that a driver
is dead therefore costs time and no result.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

from results_db.records import RunInfo
from search_spaces.errors import TunerError
from tuner.campaign import process_identity

if TYPE_CHECKING:
    from results_db import Store

#: Seconds between signs of life, and after how many without one a holder counts as dead.
BEAT_S = 15.0
DEAD_AFTER_S = 120.0
#: Tokens of the drivers at work in this process.
_at_work: set[str] = set()


def holder() -> str:
    """This driver for people to read, as `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def check(run: RunInfo) -> None:
    """`TunerError` while a living driver holds the run."""
    if alive(run):
        raise _held(run)


def abandoned(run: RunInfo) -> bool:
    """Whether the run counts as running although its driver has died."""
    return run.status == "running" and not alive(run)


def take(store: Store, run: RunInfo) -> Store:
    """Hold the run, also in place of a dead driver; `TunerError` while a live one holds it.

    Returns the store through which this driver writes, until `leave`.
    """
    check(run)
    token = secrets.token_hex(16)
    if not store.take_run(run, token, holder(), process_identity.identity()):
        found = store.run(run.run_id)
        # It may have been taken at the first try, whose answer was lost.
        if found.lease != token:
            raise _held(found)
    _at_work.add(token)
    return store.under(token)


def leave(store: Store) -> None:
    """Note that the driver with this store has ended."""
    _at_work.discard(store.lease)


def alive(run: RunInfo) -> bool:
    """Whether the driver that holds the run is at work, as far as can be seen from here.

    The last sign of life tells, by the database's clock; of a process that has ended on this
    machine no sign is awaited.
    """
    if not run.holder or process_identity.gone(run.process):
        return False
    if run.process and run.process == process_identity.identity():
        return run.lease in _at_work
    return run.silent_s is not None and run.silent_s < DEAD_AFTER_S


def _held(run: RunInfo) -> TunerError:
    if not run.holder:
        return TunerError(
            f"run {run.run_id} of {run.campaign!r} was changed by another driver just now",
            "`tuner status` shows where it stands; run again",
        )
    return TunerError(
        f"run {run.run_id} of {run.campaign!r} is under way at {run.holder}",
        f"wait for it or stop it; {DEAD_AFTER_S:.0f} s after its last sign of life it can be "
        "taken over",
    )
