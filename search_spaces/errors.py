"""The exception root of the farm: a message and the command or edit that corrects the cause.

Public exceptions name `tuner` as their module, as tracebacks show them and users import them.
"""

from __future__ import annotations


class TunerError(Exception):
    """A condition the user can correct; the command line prints it as two lines and exits with 2.

    `message` names the thing and the place; `hint` names the remedy, which tracebacks show too.
    """

    __module__ = "tuner"
    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[type[TunerError], tuple[str, str]]:
        return type(self), (self.message, self.hint)


class FindingError(TunerError):
    """The tool worked and found something the user should look at; exits with 1."""

    exit_code = 1


class KernelError(TunerError):
    """A kernel that cannot be found, imported, or does not keep its promises."""

    __module__ = "tuner"


class KernelImportError(KernelError):
    """A kernel that a worker cannot import, so that none of its configs can be built there."""


class SourceChangedError(TunerError):
    """A file of a kernel that was edited while a run measured the kernel."""


class SpaceError(TunerError):
    """A search space that is empty, contradictory, or whose constraint raises."""

    __module__ = "tuner"


class WorkloadError(TunerError):
    """A workload the kernel cannot take."""

    __module__ = "tuner"
