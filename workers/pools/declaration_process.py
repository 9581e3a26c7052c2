"""Checks of declarations in a process that has torch, so that the driver need not import it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.errors import KernelError, TunerError
from tuner.base.tracing import span
from workers.job_records import DeclarationJob, KernelRef
from workers.processes.crash_retry import crash_message
from workers.processes.fork_server import ForkServer
from workers.processes.supervised_child import (
    ChildDied,
    ChildError,
    ChildTimeout,
    SingleChild,
    SupervisedChild,
)

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel
    from search_spaces.records import Device

#: The longest that the check for one workload may take: a reference of a small workload.
_TIMEOUT_S = 300.0


class TracebackOfProcess(Exception):
    """The traceback of another process, as the cause of the error that it has sent."""


class DeclarationProcess(SingleChild):
    """One process that checks declarations; implements `workers.roles.Verdict`.

    It begins at once and ends with its answer. server: has torch, and Triton as it compiles.
    """

    def __init__(
        self, jobs: Sequence[DeclarationJob], paths: tuple[str, ...], server: ForkServer
    ) -> None:
        self._jobs = tuple(jobs)
        service = f"{__name__}:{DeclarationService.__name__}"
        super().__init__(SupervisedChild(service, paths=paths, name="declarations", server=server))
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="declarations", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the answer is still to come."""
        return self._thread.is_alive()

    def passed(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def kill(self) -> None:
        """End the process, without an answer if there is none yet."""
        super().kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                with span("check the declaration", "waiting", kernel=job.kernel.spec):
                    self._check(job)
        except Exception as error:
            self._error = error
        finally:
            self._child.retire()

    def _check(self, job: DeclarationJob) -> None:
        try:
            self._child.request("check", job, timeout_s=_TIMEOUT_S)
        except ChildError as error:
            if isinstance(error.error, TunerError):
                raise error.error from TracebackOfProcess(f"\n{error.trace}")
            raise self._make_error(job, f"fails with {error}") from TracebackOfProcess(
                f"\n{error.trace}"
            )
        except ChildTimeout as error:
            raise self._make_error(job, f"does not end within {error.limit_s:.0f} s") from error
        except ChildDied as death:
            raise self._make_error(
                job, crash_message(f"ends with {death.exit_status}", death)
            ) from death

    def _make_error(self, job: DeclarationJob, how: str) -> KernelError:
        return KernelError(
            f"kernel {job.kernel.spec}: the check of its declaration for {job.workload.key!r} "
            f"{how}",
            "correct the kernel's reference() and launches(), which the check calls",
        )


class DeclarationService:
    """In the process: the kernels, and what of them has been checked."""

    def __init__(self, cache_dir: Path) -> None:
        from search_spaces.declaration.check import DeclarationCheck

        self._check = DeclarationCheck()
        self._kernels: dict[tuple[KernelRef, Device], Kernel] = {}

    def check(self, job: DeclarationJob) -> None:
        """Raise `KernelError` for the first mistake of a declaration."""
        from workers.processes.kernel_loading import load_kernel

        key = job.kernel, job.device
        if key not in self._kernels:
            self._kernels[key] = load_kernel(job.kernel, job.device)
        self._check.check(self._kernels[key], job.workload, job.config, job.device)
