"""Faults of the machine, told from what a config or a kernel does wrong.

A full disk, too few file descriptors, or a compiler that the system killed for its memory say
nothing of the config that met them. They are found by their error number anywhere in a chain of
exceptions, by a compiler's exit status, and by what a compiler printed.
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
_REMEDIES = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _QUOTA,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.EIO: _DEVICE,
}
_KILLED = (-9, 137)
#: What compilers and the tools they start print, and the error it stands for.
_SAID = (
    (r"No space left on device", errno.ENOSPC),
    (r"ld terminated with signal 7\b", errno.ENOSPC),  # it writes into mapped memory
    (r"Disk quota exceeded", errno.EDQUOT),
    (r"Too many open files", errno.EMFILE),
    (r"Resource temporarily unavailable", errno.EAGAIN),
    (r"Cannot allocate memory|virtual memory exhausted|out of memory allocating", errno.ENOMEM),
    (r"Memory allocation failure|LLVM ERROR: out of memory", errno.ENOMEM),
    (r"Killed signal terminated program|terminated with signal 9\b", errno.ENOMEM),
    (r"failed with error code (-9|137)\b|died with <Signals\.SIGKILL", errno.ENOMEM),
    (r"Input/output error", errno.EIO),
)
#: By class name, so that neither Triton nor torch is imported to look at an error.
_COMPILERS = {"CppCompileError", "PTXASError", "InductorError", "BackendCompilerFailed"}
_LINE_CHARS = 250
#: How the message of a trial begins that was given up because its workers were lost.
LOST = "lost {count} workers in a row"
_LOST = re.compile(r"lost \d+ workers in a row")
_NUMBER = re.compile(r"\[Errno (\d+)\]")
_ASKED = re.compile(r"you tried to allocate (\d+) bytes")


class MachineFault(TunerError):
    """The machine failed, not what it was doing; `hint` names the remedy."""


def fault_of(error: BaseException | None) -> MachineFault | None:
    """The fault of the machine that an exception, its causes and contexts come from, if any."""
    for link in _chain(error):
        if isinstance(link, MachineFault):
            return link
        found = _number(link)
        if found is not None:
            return MachineFault(found[1][:_LINE_CHARS], remedy(found[0]))
    return None


def printed_fault(text: str) -> MachineFault | None:
    """The fault of the machine that a process told of before it ended, if any."""
    found = _spoken(text)
    return MachineFault(found[1][:_LINE_CHARS], remedy(found[0])) if found else None


def remedy(number: int) -> str:
    """What a user can do about an error of that number."""
    return _REMEDIES[number]


def told_by(message: str, detail: str = "") -> bool:
    """Whether a stored failure's text tells of a fault of the machine, or of lost workers."""
    if _LOST.match(message) or "(SIGKILL)" in message or "MemoryError:" in message:
        return True
    if any(int(number) in _REMEDIES for number in _NUMBER.findall(message)):
        return True
    compiler = any(f"{name}:" in message for name in _COMPILERS)
    return compiler and _spoken(f"{message}\n{detail}") is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that it came from, each once."""
    seen: set[int] = set()
    queue = [error]
    while queue:
        link = queue.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = getattr(link, "inner_exception", None)  # torch's way to name a cause
        causes = [link.__cause__, link.__context__, inner]
        queue += [cause for cause in causes if isinstance(cause, BaseException)]


def _number(error: BaseException) -> tuple[int, str] | None:
    """The error number that one exception amounts to, and its telling line."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return error.errno, f"{error}"
    if isinstance(error, MemoryError):
        return errno.ENOMEM, f"{kind}: {error}" if f"{error}" else "out of memory"
    if isinstance(error, subprocess.CalledProcessError):
        return _of_process(error)
    if kind in _COMPILERS:
        return _spoken(f"{error}")
    if kind == "RuntimeError" and "DefaultCPUAllocator" in f"{error}":
        return _of_allocator(f"{error}")
    return None


def _of_process(error: subprocess.CalledProcessError) -> tuple[int, str] | None:
    if error.returncode in _KILLED:
        words = error.cmd.split() if isinstance(error.cmd, str) else list(error.cmd)
        return errno.ENOMEM, f"{os.path.basename(f'{words[0]}')} was killed (SIGKILL)"
    printed = [error.stdout, error.stderr]
    text = (part.decode(errors="replace") if isinstance(part, bytes) else part for part in printed)
    return _spoken("\n".join(f"{part}" for part in text if part))


def _of_allocator(said: str) -> tuple[int, str] | None:
    """Torch had no memory for a tensor; one larger than the whole memory is its kernel's fault."""
    asked = _ASKED.search(said)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if asked and int(asked[1]) > memory:
        return None
    return errno.ENOMEM, said.splitlines()[0]


def _spoken(text: str) -> tuple[int, str] | None:
    """The error that a program's output tells of, with the line that does."""
    for pattern, number in _SAID:
        for line in text.splitlines():
            if re.search(pattern, line):
                return number, line.strip()
    return None
