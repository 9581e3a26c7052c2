"""A test in a process of its own: what it breaks, or how long it hangs, is nobody else's trouble.

Processes are forked before anything touched the GPU, so each has a context of its own and imports
nothing anew.
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
    """A process that ended without an answer, or was ended because it gave none in time."""


def isolated(function: Callable[..., Any], *args: Any, limit_s: float) -> Any:
    """What the function returns in a forked process; raises Lost with the reason."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_answer, args=(sender, function, args))
    with warnings.catch_warnings():
        # Threads of the parent's libraries wait for work that no child will ask of them.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise Lost(f"no answer within {limit_s:.0f} s")
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
    # A group of its own, so that its own helpers end with it.
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
