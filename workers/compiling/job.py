"""One build job: load the kernel, build the variant, and distinguish failures from faults."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces import source_positions
from search_spaces.absent_device.module_sets import modules_of
from search_spaces.errors import KernelError, KernelImportError, TunerError
from search_spaces.records import Device, Status
from workers import backend_kinds
from workers.job_records import Artifact, BuildJob, Failure
from workers.processes.machine_faults import LastingFault, MachineFault, fault_of

if TYPE_CHECKING:
    from search_spaces.kernel import Kernel

_LINE_CHARS = 300
_DETAIL_CHARS = 6000
#: How long a machine that has built a sample counts as one that builds.
_SOUND_S = 60.0
#: Until when this process need not build a sample, by target.
_sound_until: dict[str, float] = {}


def build(job: BuildJob, cache_dir: Path) -> Artifact | Failure:
    """Build one variant for the target of `job.device`, with compiler caches below `cache_dir`.

    Returns a `Failure` with status `compile` when the config does not compile, and `constraints`
    when its binary cannot run on the device. Raises `MachineFault`, `KernelError`, any other
    `TunerError` or `ImportError` for faults of this machine, the kernel or the target.
    """
    from search_spaces.identity import refuse_unnamed
    from search_spaces.registry import is_ours
    from workers.processes.kernel_loading import load_kernel

    before = frozenset(sys.modules)
    with modules_of(None if is_ours(job.kernel.spec) else job.device):
        try:
            kernel = load_kernel(job.kernel)
        except KernelError as error:
            unusable = KernelImportError(error.message, error.hint)
            raise fault_of(error) or unusable from error
        except TunerError as error:
            raise fault_of(error) or error from error
        result = build_kernel(kernel, job, cache_dir)
        if not is_ours(job.kernel.spec):
            refuse_unnamed(kernel, before)
        return result


def build_kernel(kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
    """`build` for a loaded kernel; ignores `job.kernel`."""
    started = time.perf_counter()
    result: Artifact | Failure
    backend = backend_kinds.spec_of_target(job.device.target)
    try:
        # ptxas failures print the program to stdout, which a worker may use for its messages.
        with contextlib.redirect_stdout(io.StringIO()):
            result = backend.compile(kernel, job, cache_dir.resolve())
    except Exception as error:
        if fault := fault_of(error):
            raise fault from error
        if isinstance(error, TunerError | ImportError):
            raise
        if fault := _fault_of_sample(job.device, cache_dir):
            raise fault from error
        result = Failure(Status.COMPILE, headline(error), detail=_detail(error))
    return dataclasses.replace(result, build_s=time.perf_counter() - started)


def _fault_of_sample(device: Device, cache_dir: Path) -> MachineFault | None:
    """The fault of a machine that cannot build a known sample for the device either.

    A sample that was built is not repeated for a minute.
    """
    now = time.monotonic()
    if now < _sound_until.get(device.target, 0.0):
        return None
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            tempfile.TemporaryDirectory(dir=cache_dir, prefix="sample-") as folder,
        ):
            backend_kinds.spec_of_target(device.target).build_sample(device, Path(folder).resolve())
    except Exception as error:
        return fault_of(error) or LastingFault(
            f"this machine builds nothing for {device.target}: {headline(error)}",
            "run `tuner doctor`, and compare the toolchain and the environment with a machine "
            "that builds",
        )
    _sound_until[device.target] = now + _SOUND_S
    return None


def headline(error: BaseException) -> str:
    """A one-line message: the error's type and reason, and the file and line of the user's code.

    The position is that of the user's host code or of the Triton function.
    """
    where = source_positions.place(error)
    return f"{_reason(error)[: max(0, _LINE_CHARS - len(where))]}{where}"[:_LINE_CHARS]


def _reason(error: BaseException) -> str:
    # A message of Triton that ends by marking a call is explained by the error inside that call.
    while f"{error}".rstrip().endswith("^") and error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch.compile puts a line before the message of its backend's error.
    lines = lines[1:] if lines[1:] and lines[0].endswith("raised:") else lines
    name = type(error).__name__
    if not lines:
        return name
    # Triton ends with the reason, after quoting the source; other compilers mark the line.
    mark = r"^ptxas[\w-]* \w+\s*:" if name == "PTXASError" else r"\b[Ee]rror\s*:"
    marked = [line for line in lines if re.search(mark, line)]
    reason = lines[-1] if name == "CompilationError" else (marked or lines)[0]
    return f"{name}: {reason}"


def _detail(error: Exception) -> str:
    """The compiler's output, or the traceback through the user's host code."""
    if source_positions.line(error):
        return source_positions.trace(error, _DETAIL_CHARS)
    return source_positions.trim(str(error), _DETAIL_CHARS)
