"""Recording of a trace around a block, and its file."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.atomic_file import write_atomic, write_output
from search_spaces.errors import TunerError
from tuner import tracing

if TYPE_CHECKING:
    from tuner.traces.trace_records import RecordedProcess

_REMEDY = "name another file, in a folder that exists and that you may write to"
_log = logging.getLogger(__name__)
#: The folder of the trace that this process records.
_folder: Path | None = None
#: Spans that began before, by CLOCK_MONOTONIC, are in the time line of an earlier run.
_shown_until_ns = 0
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Written:
    """A trace that is written, and whose process ends next."""

    path: Path
    processes: list[RecordedProcess]
    #: When the traced block ended, by CLOCK_MONOTONIC.
    ended_ns: int


_keeps_exit = False
_written: _Written | None = None


def keep_exit() -> None:
    """Add the exit of this process to the last trace that it writes.

    For programs, at their start: the exit is recorded after all that is registered with `atexit`
    later.
    """
    global _keeps_exit
    if not _keeps_exit:
        atexit.register(_record_exit)
    _keeps_exit = True


@contextmanager
def record(path: Path | None, name: str, *, option: str = "--trace") -> Iterator[None]:
    """Record the block, and the processes that it starts, into a trace file.

    path: the file, replaced in one step after the block, also when the block raises; None: nothing
    is recorded. name: of the span around the block. option: what messages call the path. Raises
    `TunerError` before the block if the path cannot be written or this process records already.
    """
    if path is None:
        yield
        return
    path = path.absolute()
    check_writable(path, option)
    folder = _begin(option)
    failed = True
    try:
        with tracing.span(name, "run"):
            yield
        failed = False
    finally:
        tracing.end()
        try:
            _write(folder, path, raises=not failed)
        finally:
            _end(folder)


def timeline_so_far() -> Mapping[str, Any] | None:
    """What the report draws of the trace that is on, until now; None without a trace.

    The second run of a trace, such as that of a session, gets the spans since the first.
    """
    global _shown_until_ns
    from tuner.traces.timeline import timeline
    from tuner.traces.trace_records import read, since

    folder, from_ns = _folder, _shown_until_ns
    if folder is None:
        return None
    _shown_until_ns = time.monotonic_ns()
    return timeline(since(read(folder), from_ns))


def check_writable(path: Path, option: str) -> None:
    """Raise `TunerError` if a file cannot be written there."""
    problem = ""
    if path.exists() and not path.is_file():
        problem = "it is a folder" if path.is_dir() else "it is no regular file"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        problem = f"the folder {path.parent} is not writable"
    if problem:
        raise TunerError(f"{option}: {path} cannot be written: {problem}", _REMEDY)


def _begin(option: str) -> Path:
    global _folder, _shown_until_ns
    with _lock:
        if _folder is not None:
            raise TunerError(
                f"{option}: this process records a trace already",
                "let the other traced call end first",
            )
        _folder = Path(tempfile.mkdtemp(prefix="tuner-trace-"))
        _shown_until_ns = 0
        tracing.begin(_folder, "driver")
        return _folder


def _write(folder: Path, path: Path, *, raises: bool) -> None:
    """Write the file. A failure is only logged where another error would be hidden by it."""
    from tuner.traces.chrome import encode
    from tuner.traces.trace_records import read

    global _written
    ended_ns = time.monotonic_ns()
    try:
        processes = read(folder)
        write_output(path, encode(processes), _REMEDY)
        _written = _Written(path, processes, ended_ns) if _keeps_exit else None
    except TunerError as error:
        if raises:
            raise
        _log.warning("the trace is lost: %s", error.message)


def _end(folder: Path) -> None:
    global _folder
    shutil.rmtree(folder, ignore_errors=True)
    _folder = None


def _record_exit() -> None:
    """Write the file again with the time since the traced block. Nobody could act on an error."""
    from tuner.traces.chrome import encode
    from tuner.traces.trace_records import RecordedSpan

    written = _written
    mine = [one for one in written.processes if one.pid == os.getpid()] if written else []
    if written is None or not mine:  # also in a fork, which has another number
        return
    end_ns = time.monotonic_ns()
    leaving = RecordedSpan(os.getpid(), written.ended_ns, end_ns, "end", "exit")
    whole = replace(mine[0], spans=[*mine[0].spans, leaving])
    processes = [whole if one is mine[0] else one for one in written.processes]
    with suppress(OSError):
        write_atomic(written.path, encode(processes))
