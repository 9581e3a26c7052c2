"""Faults of the machine, distinguished from errors of a config or a kernel.

A full disk, too few file descriptors or a compiler that the system killed for its memory say
nothing about the config that was built or measured at the time. Such faults are recognised by their
error number anywhere in a chain of exceptions, by a compiler's exit status and by its output.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator

from search_spaces.errors import TunerError

_DISK = "free some space for temporary files, or set TMPDIR to a folder on a larger disk"
_QUOTA = "free some of the quota for temporary files, or set TMPDIR to a folder on another disk"
_FILES = "raise the limit on open files (`ulimit -n`), or set `pool.builders` lower"
_PROCESSES = "raise the limit on processes (`ulimit -u`), or set `pool.builders` lower"
_MEMORY = "set `pool.builders` lower, or give the machine or its container more memory"
_DEVICE = "see the system's log (`dmesg`) for what is wrong with the disk of TMPDIR"
FILE_SIZE = "raise the limit on the size of files (`ulimit -f unlimited`)"
_READ_ONLY = "set TMPDIR to a folder that can be written"
_REMEDIES = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _QUOTA,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.EIO: _DEVICE,
    errno.EFBIG: FILE_SIZE,
    errno.EROFS: _READ_ONLY,
}
_KILLED = (-9, 137)
#: Output of compilers and of the tools they start, and the error number it means.
_OUTPUT = (
    (r"No space left on device", errno.ENOSPC),
    (r"ld terminated with signal 7\b", errno.ENOSPC),  # the linker writes into mapped memory
    (r"Disk quota exceeded", errno.EDQUOT),
    (r"Too many open files", errno.EMFILE),
    (r"Resource temporarily unavailable", errno.EAGAIN),
    (r"Cannot allocate memory|virtual memory exhausted|out of memory allocating", errno.ENOMEM),
    (r"Memory allocation failure|LLVM ERROR: out of memory", errno.ENOMEM),
    (r"Killed signal terminated program|terminated with signal 9\b", errno.ENOMEM),
    (r"failed with error code (-9|137)\b|died with <Signals\.SIGKILL", errno.ENOMEM),
    (r"Input/output error", errno.EIO),
    (r"File too large|File size limit exceeded|terminated with signal 25\b", errno.EFBIG),
    (r"failed with error code (-25|153)\b|died with <Signals\.SIGXFSZ", errno.EFBIG),
    (r"Read-only file system", errno.EROFS),
)
#: Errors of compilers, by class name, so that neither Triton nor torch is imported.
_COMPILER_ERRORS = {"CppCompileError", "PTXASError", "InductorError", "BackendCompilerFailed"}
_LINE_CHARS = 250
#: The message of a trial that was given up because its workers were lost.
LOST = "lost {count} workers in a row"
_LOST = re.compile(r"lost \d+ workers in a row")
_NUMBER = re.compile(r"\[Errno (\d+)\]")
_ALLOCATION = re.compile(r"you tried to allocate (\d+) bytes")


class MachineFault(TunerError):
    """The machine failed, not the work it was doing; `hint` names the remedy."""


class LastingFault(MachineFault):
    """A fault that ends only when a person ends it: no compiler, a limit on the size of files."""


def fault_of(error: BaseException | None) -> MachineFault | None:
    """The fault of the machine that caused an exception, directly or through its chain, if any."""
    for link in _chain(error):
        if isinstance(link, MachineFault):
            return link
        found = _number(link)
        if found is not None:
            return MachineFault(found[1][:_LINE_CHARS], remedy(found[0]))
    return None


def printed_fault(text: str) -> MachineFault | None:
    """The fault of the machine that a process printed before it ended, if any."""
    found = _number_in_output(text)
    return MachineFault(found[1][:_LINE_CHARS], remedy(found[0])) if found else None


def remedy(number: int) -> str:
    """What a user can do about an error of that number."""
    return _REMEDIES[number]


def is_named_in(message: str, detail: str = "") -> bool:
    """Whether the text of a stored failure names a fault of the machine or lost workers."""
    if _LOST.match(message) or "(SIGKILL)" in message or "MemoryError:" in message:
        return True
    if any(int(number) in _REMEDIES for number in _NUMBER.findall(message)):
        return True
    compiler = any(f"{name}:" in message for name in _COMPILER_ERRORS)
    return compiler and _number_in_output(f"{message}\n{detail}") is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, its causes and its contexts, each once."""
    seen: set[int] = set()
    queue = [error]
    while queue:
        link = queue.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = getattr(link, "inner_exception", None)  # torch keeps a cause here
        causes = [link.__cause__, link.__context__, inner]
        queue += [cause for cause in causes if isinstance(cause, BaseException)]


def _number(error: BaseException) -> tuple[int, str] | None:
    """The error number that one exception means, and the line that says so."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno, f"{error}"
    if isinstance(error, MemoryError):
        return errno.ENOMEM, f"{kind}: {error}" if f"{error}" else "out of memory"
    if isinstance(error, subprocess.CalledProcessError):
        return _number_of_process(error)
    if kind in _COMPILER_ERRORS:
        return _number_in_output(f"{error}")
    if kind == "RuntimeError" and "DefaultCPUAllocator" in f"{error}":
        return _number_of_allocation(f"{error}")
    return None


def _number_of_process(error: subprocess.CalledProcessError) -> tuple[int, str] | None:
    if error.returncode in _KILLED:
        words = error.cmd.split() if isinstance(error.cmd, str) else list(error.cmd)
        return errno.ENOMEM, f"{os.path.basename(f'{words[0]}')} was killed (SIGKILL)"
    printed = [error.stdout, error.stderr]
    text = (part.decode(errors="replace") if isinstance(part, bytes) else part for part in printed)
    return _number_in_output("\n".join(f"{part}" for part in text if part))


def _number_of_allocation(message: str) -> tuple[int, str] | None:
    """Torch found no memory for a tensor. A tensor larger than the memory is the kernel's error."""
    size = _ALLOCATION.search(message)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size and int(size[1]) > memory:
        return None
    return errno.ENOMEM, message.splitlines()[0]


def _number_in_output(text: str) -> tuple[int, str] | None:
    """The error number that a program's output means, and the line that says so."""
    for pattern, number in _OUTPUT:
        for line in text.splitlines():
            if re.search(pattern, line):
                return number, line.strip()
    return None
