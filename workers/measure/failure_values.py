"""Exceptions of kernels and compilers as `Failure` values."""

from __future__ import annotations

from search_spaces import source_positions
from search_spaces.errors import TunerError
from search_spaces.records import Status
from workers.job_records import Failure
from workers.processes.machine_faults import fault_of

_LINE_CHARS = 300
_DETAIL_CHARS = 20_000
#: By class name, so that inspecting an error imports neither triton nor torch.
_STATUSES = {
    "OutOfResources": Status.CONSTRAINTS,
    "CompilationError": Status.COMPILE,
    "PTXASError": Status.COMPILE,
    "BackendCompilerFailed": Status.COMPILE,
    "CppCompileError": Status.COMPILE,
    "InductorError": Status.COMPILE,
}


def failure_of(error: Exception, *, doing: str = "") -> Failure:
    """The failure that an exception stands for: its status, a one-line message, the traceback.

    doing: the operation that failed; the message begins with it. If the error comes from the user's
    own code, the message ends with its file and line, and the traceback contains only frames of
    that code. Raises `MachineFault` where the machine caused the exception, because that says
    nothing about the variant.
    """
    if fault := fault_of(error):
        raise fault from error
    if isinstance(error, TunerError):
        line = error.message + (f" ({error.hint})" if error.hint else "")
    else:
        lines = f"{error}".strip().splitlines()
        line = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    where = source_positions.place(error)
    line = f"{doing}: {line}" if doing else line
    message = line[: max(0, _LINE_CHARS - len(where))] + where
    status = Status.RUNTIME
    for base in type(error).__mro__:
        status = _STATUSES.get(base.__name__, status)
    return Failure(
        status,
        message[:_LINE_CHARS],
        detail=source_positions.trace(error, _DETAIL_CHARS),
    )
