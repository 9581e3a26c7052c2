"""Exceptions of kernels and compilers turned into values."""

from __future__ import annotations

from search_spaces.declaration import source_positions
from search_spaces.errors import TunerError
from search_spaces.records import Status
from workers.records import Artifact, Failure
from workers.supervision.machine_faults import fault_of

_LINE_CHARS = 300
_DETAIL_CHARS = 20_000
#: by class name, so that neither triton nor torch is imported to look at an error
_STATUSES = {
    "OutOfResources": Status.CONSTRAINTS,
    "CompilationError": Status.COMPILE,
    "PTXASError": Status.COMPILE,
    "BackendCompilerFailed": Status.COMPILE,
    "CppCompileError": Status.COMPILE,
    "InductorError": Status.COMPILE,
}


def failure_of(error: Exception, *, doing: str = "", artifact: Artifact | None = None) -> Failure:
    """The failure an exception amounts to: its status, one line for people, the traceback.

    doing: what was being done, put before the message. The line ends with the file and line of the
    user's own code, if the error comes from there, and the traceback then holds no other frames.
    Raises `MachineFault` where the exception comes from a fault of the machine, which is no failure
    of what was being done.
    """
    if fault := fault_of(error):
        raise fault from error
    if isinstance(error, TunerError):
        line = error.message + (f" ({error.hint})" if error.hint else "")
    else:
        said = f"{error}".strip().splitlines()
        line = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
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
        facts=artifact.facts if artifact is not None else None,
        binary_hash=artifact.binary_hash if artifact is not None else "",
    )
