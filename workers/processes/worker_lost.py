"""The error that means: the worker, not its job, is at fault."""

from __future__ import annotations

from functools import partial

from search_spaces.errors import KernelImportError
from workers.processes.machine_faults import LastingFault, fault_of


class WorkerLost(Exception):
    """The worker is at fault. The pool reports its job as lost and starts the worker again."""

    def __init__(self, message: str, remedy: str = "", *, lasting: bool = False) -> None:
        super().__init__(message)
        #: What a user can do about a fault of the machine or the kernel; empty for other causes.
        self.remedy = remedy
        #: Whether nothing can be built or measured here: the kernel cannot be imported, or the
        #: machine lacks what a build needs.
        self.lasting = lasting

    def __reduce__(self) -> tuple[partial[WorkerLost], tuple[str, str]]:
        return partial(type(self), lasting=self.lasting), (f"{self}", self.remedy)


def reason_of(error: BaseException) -> str:
    """One line that says why a worker or its job was lost."""
    kind = "" if isinstance(error, WorkerLost) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}")


def remedy_of(error: BaseException) -> str:
    """What a user can do about an error of a worker; empty where neither machine nor kernel is at
    fault."""
    if isinstance(error, WorkerLost):
        return error.remedy
    fault = fault_of(error)
    return fault.hint if fault else ""


def lost_to(error: BaseException | None) -> WorkerLost:
    """The loss of a job to an error of its kernel or of the machine, which is no failure of a
    config."""
    if fault := fault_of(error):
        lasting = isinstance(fault, LastingFault)
        return WorkerLost(one_line(fault.message), fault.hint, lasting=lasting)
    if isinstance(error, KernelImportError):
        return WorkerLost(one_line(f"{error}"), error.hint, lasting=True)
    return WorkerLost(one_line(f"{error}"))


def is_lasting(error: BaseException) -> bool:
    """Whether a job was lost to what will probably meet all other workers, too."""
    return isinstance(error, WorkerLost) and error.lasting


# -- errors as one line of text --------------------------------------------------------------------
_LIMIT = 300


def one_line(text: str, limit: int = _LIMIT) -> str:
    """The text with single spaces, cut to `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."


def times(count: int) -> str:
    """`twice`, `3 times`."""
    return "twice" if count == 2 else f"{count} times"
