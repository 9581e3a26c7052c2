"""One driver per run: who holds it, and when a run of a dead driver may be taken over."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from results_db.records import RunInfo
from search_spaces.errors import TunerError

if TYPE_CHECKING:
    from results_db import Store

#: Seconds between signs of life, and after how many without one a holder counts as dead.
BEAT_S = 15.0
DEAD_AFTER_S = 120.0


def holder() -> str:
    """This driver, as `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def check(run: RunInfo) -> None:
    """`TunerError` while a living driver other than this one holds the run."""
    if run.holder and _alive(run):
        raise _held(run)


def abandoned(run: RunInfo) -> bool:
    """Whether the run counts as running although its driver has died."""
    return run.status == "running" and not _alive(run, own=True)


def take(store: Store, run: RunInfo) -> None:
    """Hold the run, also in place of a dead driver; `TunerError` while a live one holds it."""
    check(run)
    if not store.hold_run(run.run_id, holder(), run.holder):
        raise _held(store.run(run.run_id))


def keep(store: Store, run_id: int) -> None:
    """Give a sign of life; `TunerError` when another driver has taken the run over."""
    if not store.hold_run(run_id, holder()):
        raise _held(store.run(run_id))


def _held(run: RunInfo) -> TunerError:
    return TunerError(
        f"run {run.run_id} of {run.campaign!r} is under way at {run.holder}",
        f"wait for it or stop it; {DEAD_AFTER_S:.0f} s after its last sign of life it can be "
        "taken over",
    )


def _alive(run: RunInfo, *, own: bool = False) -> bool:
    """On this host the process tells at once; the last sign of life does everywhere.

    A process of that number alone proves nothing: numbers are given again. own: this very process
    counts too.
    """
    host, _, pid = run.holder.rpartition(":")
    here = own and run.holder == holder()
    if host == socket.gethostname() and not here and not _another_runs(pid):
        return False
    last = run.heartbeat_at
    return last is not None and (datetime.now(UTC) - last).total_seconds() < DEAD_AFTER_S


def _another_runs(pid: str) -> bool:
    return pid != f"{os.getpid()}" and os.path.exists(f"/proc/{pid}")
