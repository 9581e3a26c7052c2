"""Recording of a trace around a block, and its file."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.atomic_file import write_atomic, write_output
from search_spaces.errors import TunerError
from tuner.base import tracing

if TYPE_CHECKING:
    from tuner.traces.trace_events import TracedProcess

_REMEDY = "name another file, in a folder that exists and that you may write to"
_log = logging.getLogger(__name__)
#: Held while this process records a trace, whose folder is the next.
_lock = threading.Lock()
_folder: Path | None = None
#: Spans that began before, by CLOCK_MONOTONIC, are in the time line of an earlier run.
_shown_until_us = 0.0
_keeps_exit = False
#: Of a process that keeps its exit: file, processes and end of the last trace.
_written: tuple[Path, list[TracedProcess], float] | None = None


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
    with _one_folder(option) as folder:
        failed = True
        tracing.begin(folder, "driver")
        try:
            with tracing.span(name, "run"):
                yield
            failed = False
        finally:
            tracing.end()
            _write(folder, path, raises=not failed)


def timeline_so_far() -> Mapping[str, Any] | None:
    """What the report draws of the trace that is on, until now; None without a trace.

    The second run of a trace, such as that of a session, gets the spans since the first.
    """
    global _shown_until_us
    from tuner.traces.timeline import timeline
    from tuner.traces.trace_events import join_files

    folder, from_us = _folder, _shown_until_us
    if folder is None:
        return None
    _shown_until_us = tracing.now_us()
    return timeline(join_files(folder, from_us=from_us))


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


@contextmanager
def _one_folder(option: str) -> Iterator[Path]:
    """The folder of a trace; a process records one trace at a time."""
    global _folder, _shown_until_us
    if not _lock.acquire(blocking=False):
        raise TunerError(
            f"{option}: this process records a trace already", "let the other traced call end first"
        )
    try:
        folder = _folder = Path(tempfile.mkdtemp(prefix="tuner-trace-"))
        _shown_until_us = 0.0
        yield folder
    finally:
        if _folder is not None:
            shutil.rmtree(_folder, ignore_errors=True)
        _folder = None
        _lock.release()


def _write(folder: Path, path: Path, *, raises: bool) -> None:
    """Write the file. A failure is only logged where another error would be hidden by it."""
    from tuner.traces.trace_events import encode, join_files

    global _written
    ended_us = tracing.now_us()
    try:
        processes = join_files(folder)
        write_output(path, encode(processes), _REMEDY)
        _written = (path, processes, ended_us) if _keeps_exit else None
    except TunerError as error:
        if raises:
            raise
        _log.warning("the trace is lost: %s", error.message)


def _record_exit() -> None:
    """Write the file again with the time since the traced block. Nobody could act on an error."""
    from tuner.traces.trace_events import encode

    path, processes, ended_us = _written or (Path(), [], 0.0)
    pid = os.getpid()
    for process in processes:  # of a fork, none has the number
        if process.pid == pid:
            times = {"ts": ended_us, "dur": tracing.now_us() - ended_us}
            event = {"ph": "X", "name": "exit", "cat": "end", "tid": pid, "args": {}, **times}
            process.spans.append(event)
            with suppress(OSError):
                write_atomic(path, encode(processes))
