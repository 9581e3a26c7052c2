"""The error that means: the worker, not its job, is at fault."""

from __future__ import annotations

from workers.supervision.error_text import one_line
from workers.supervision.machine_faults import fault_of


class WorkerLost(Exception):
    """The worker is at fault. The pool reports its job as lost and starts the worker again."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        #: What a user can do about a fault of the machine; empty for other causes.
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[WorkerLost], tuple[str, str]]:
        return type(self), (f"{self}", self.remedy)


def reason_of(error: BaseException) -> str:
    """One line that says why a worker or its job was lost."""
    kind = "" if isinstance(error, WorkerLost) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}")


def remedy_of(error: BaseException) -> str:
    """What a user can do about an error of a worker; empty if the machine is not at fault."""
    if isinstance(error, WorkerLost):
        return error.remedy
    fault = fault_of(error)
    return fault.hint if fault else ""
