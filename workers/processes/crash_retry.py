"""The retry of a crashed process: when a job runs again, and when its variant is at fault.

A process may be ended by its variant (SIGSEGV, abort), by the system (out of memory) or by a person
(`kill -9`). One crash does not tell which, so the job runs again in a fresh process:

- a second crash is the variant's: its outcome is a failure with the signal and the last output;
- SIGKILL comes from outside and counts against no variant; after four the worker is lost, and the
  pool reports the job as lost;
- a process that dies while it starts is replaced once; a second death loses the worker.

Builds apply the rule in `workers.compiling.process_builder`, measurements in `fault_attribution`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

from workers.processes.machine_faults import fault_of, printed_fault, remedy
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SupervisedChild,
)
from workers.processes.worker_lost import WorkerLost, one_line, times

_log = logging.getLogger(__name__)
#: A variant's own crashes after which it is at fault, and deaths of any kind.
_MAX_CRASHES, _MAX_DEATHS = 2, 4


def at_fault(exits: Sequence[str]) -> bool:
    """Whether the job runs no more, given how each of its processes ended.

    exits: `SIGSEGV`, `exit code 3`; SIGKILL is no crash of the job's own. Where this is true for
    SIGKILL alone, `raise_if_killed` raises instead of a failure of the job.
    """
    crashes = sum(one != "SIGKILL" for one in exits)
    return crashes >= _MAX_CRASHES or len(exits) >= _MAX_DEATHS


def raise_if_killed(exits: Sequence[str], owner: str) -> None:
    """Raise WorkerLost where SIGKILL alone ended the processes of a job. owner: `a builder`."""
    if all(one == "SIGKILL" for one in exits):
        message = f"{owner}'s process was killed (SIGKILL) {times(len(exits))}"
        raise WorkerLost(message, remedy(errno.ENOMEM))


def crash_message(cause: str, death: ChildDied) -> str:
    """The cause, with the last line that the process printed."""
    return one_line(f"{cause}: {death.last_line}" if death.last_line else cause)


def start(child: SupervisedChild) -> None:
    """Start a child before its job, so that a death during the start is not the job's fault.

    A child that dies while it starts is replaced once. Raises WorkerLost.
    """
    try:
        try:
            child.start()
        except ChildDied as death:
            _log.info("%s while it started; it starts again", death)
            child.start()
    except (ChildDied, ChildTimeout, ChildError, OSError) as error:
        reason = crash_message(f"{error}", error) if isinstance(error, ChildDied) else f"{error}"
        fault = fault_of(error.error if isinstance(error, ChildError) else error)
        if isinstance(error, ChildDied):
            fault = printed_fault(error.output)
        message = f"the child process cannot be started: {one_line(reason)}"
        raise WorkerLost(message, fault.hint if fault else "") from None
