"""Run a test in its own process, so that a crash or a hang affects no other test.

Processes are forked before the parent uses the GPU, so each has its own context and imports nothing
again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

_FORK = multiprocessing.get_context("fork")


class Lost(Exception):
    """A process that ended without a result or exceeded its time limit."""


def isolated(function: Callable[..., Any], *args: Any, limit_s: float) -> Any:
    """The result of the function in a forked process. Raises Lost with the reason."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(sender, function, args))
    with warnings.catch_warnings():
        # The parent's idle library threads do not exist in the child, which never uses them.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise Lost(f"no result within {limit_s:.0f} s")
        fine, answer = receiver.recv()
    except EOFError:
        process.join(5)
        raise Lost(f"its process ended with exit code {process.exitcode}") from None
    finally:
        _end(process)
        receiver.close()
    if not fine:
        raise Lost(answer)
    return answer


def _answer(sender, function, args) -> None:
    # A new process group, so that its child processes end with it.
    os.setsid()
    try:
        answer = True, function(*args)
    except BaseException as problem:
        traceback.print_exc()
        answer = False, f"{type(problem).__name__}: {problem}".splitlines()[0]
    sender.send(answer)


def _end(process) -> None:
    process.join(2)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if process.is_alive():
            process.kill()
    process.join(10)
