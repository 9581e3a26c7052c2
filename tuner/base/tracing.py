"""Spans: what a thread does from one moment to another, recorded by every process of a run.

    with span("compile", "build", config="BLOCK_M=64"):
        ...

    @trace_calls("write the report", "output")
    def write(...): ...

A trace is on while the environment variable `TUNER_TRACE_FOLDER` names a folder. Child processes
inherit the variable; each process appends to a file of its own there, and `tuner.traces` joins the
files into one trace. While no trace is on, a span costs one check of a module variable.

A line is an event of Chrome's Trace Event Format, written by one call when it happens. A process
that is killed therefore loses nothing but the ends of its open spans. The kinds are

    M   `process_name` or `thread_name`; a later name of the same replaces an earlier one
    B   a span begins
    X   a span is over; if it had a B, that has the same `id`
    i   `exit`: this process has seen the end of the process `args.pid`

Times are microseconds of CLOCK_MONOTONIC, which all processes of a machine share; `tts` and `tdur`
are the processor time of the thread, absent where it is not known. Standard library only; every
package may import this module.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

#: Names the folder of the trace that is on; child processes inherit it.
VARIABLE = "TUNER_TRACE_FOLDER"
#: Every time a process has written this many spans, the least duration that it writes doubles,
#: from 1 ms on. This bounds the file of a run of many hours.
_SPANS_PER_STEP = 20_000
_FIRST_LIMIT_US = 1000.0
#: A process that was started longer ago than this was not started for the traced work.
_LONGEST_START_S = 60.0
_encode = json.JSONEncoder(default=str, separators=(",", ":")).encode
#: When this module was loaded.
_LOADED_NS = time.monotonic_ns()

Argument = str | int | float | bool | None
P = ParamSpec("P")
R = TypeVar("R")


class Span:
    """A span of a process that records nothing."""

    __slots__ = ()

    def add(self, **arguments: Argument) -> None:
        """Add arguments that are known only during the span."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None: ...


def span(name: str, category: str, /, *, least_s: float = 0.0, **arguments: Argument) -> Span:
    """A context manager that records its block as a span of the current thread.

    category: one of those in docs/tracing.md. least_s: shorter spans are not written, and neither
    is one that a kill interrupts. arguments: facts shown with the span.
    """
    recorder = _recorder
    if recorder is None:
        return _OFF
    return _RecordedSpan(recorder, least_s, {"name": name, "cat": category, "args": arguments})


def trace_calls(
    name: str, category: str, *, least_s: float = 0.0
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that records each call as a span; the arguments are those of `span`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _recorder is None:
                return function(*args, **kwargs)
            with span(name, category, least_s=least_s):
                return function(*args, **kwargs)

        return call

    return decorate


def begin(folder: Path, process: str) -> None:
    """Record this process under that name, and the children that it starts from now on."""
    os.environ[VARIABLE] = f"{folder}"
    join(process)


def end() -> None:
    """Stop recording this process and the children that it starts from now on."""
    global _recorder
    recorder, _recorder = _recorder, None
    os.environ.pop(VARIABLE, None)
    if recorder is not None:
        recorder.close()


def join(process: str) -> None:
    """Record this process under that name if its environment names a trace, else stop recording.

    The first call in a young process also records the start of Python.
    """
    global _recorder
    folder = os.environ.get(VARIABLE)
    if _recorder is not None:
        if folder == _recorder.folder:
            _recorder.name_process(process)
            return
        _recorder.close()
        _recorder = None
    if folder and os.path.isdir(folder):
        _recorder = _Recorder(folder, process)
        started_ns = _process_start_ns()
        if time.monotonic_ns() - started_ns < _LONGEST_START_S * 1e9:
            record("start of Python", "start", started_ns, _LOADED_NS)
            record("imports before the trace", "start", _LOADED_NS, time.monotonic_ns())


def record(name: str, category: str, start_ns: int, end_ns: int, **arguments: Argument) -> None:
    """Record a span of the current thread that is over; times of CLOCK_MONOTONIC."""
    if _recorder is not None:
        start_us, duration_us = start_ns / 1000, (end_ns - start_ns) / 1000
        facts = {"tid": _recorder.thread(), "ts": start_us, "dur": duration_us, "args": arguments}
        _recorder.end_span({"name": name, "cat": category, **facts}, 0.0)


def process_ended(pid: int | None) -> None:
    """Record that a child process has ended, which ends the spans that it left open."""
    if _recorder is not None and pid is not None:
        _recorder.write("i", {"name": "exit", "ts": now_us(), "args": {"pid": pid}})


def now_us() -> float:
    """The time of CLOCK_MONOTONIC in microseconds."""
    return time.monotonic_ns() / 1000


class _Recorder:
    """Writes the events of one process."""

    def __init__(self, folder: str, process: str) -> None:
        self.folder, self.process = folder, process
        self.numbers = itertools.count()
        self._pid = os.getpid()
        #: Threads whose names are written; the system uses the number of an ended thread again.
        self._threads: set[tuple[int, str]] = set()
        self._spans = 0
        self._descriptor = -1
        path = os.path.join(folder, f"{boot()}-{self._pid}-{time.monotonic_ns()}.jsonl")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with suppress(OSError):
            self._descriptor = os.open(path, flags, 0o600)
        self.name_process(process)

    @property
    def limit_us(self) -> float:
        """The least duration that is written now."""
        steps = self._spans // _SPANS_PER_STEP
        return _FIRST_LIMIT_US * 2 ** min(steps - 1, 20) if steps else 0.0

    def name_process(self, name: str) -> None:
        self.process = name
        self.write("M", {"name": "process_name", "args": {"name": name}})

    def thread(self) -> int:
        """The number of the current thread, whose name is written."""
        tid, name = threading.get_native_id(), threading.current_thread().name
        if (tid, name) not in self._threads:
            self._threads.add((tid, name))
            self.write("M", {"name": "thread_name", "tid": tid, "args": {"name": name}})
        return tid

    def end_span(self, event: dict[str, Any], least_us: float) -> None:
        """Write a span that is over, unless it is too short and its begin is not written."""
        if "id" in event or event["dur"] >= max(least_us, self.limit_us):
            self._spans += 1
            self.write("X", event)

    def write(self, kind: str, event: dict[str, Any]) -> None:
        """Append one event; a full disk ends the records and not the work."""
        if self._descriptor < 0:
            return
        line = _encode({"ph": kind, "pid": self._pid, **event}) + "\n"
        try:
            os.write(self._descriptor, line.encode())
        except OSError:
            self.close()

    def close(self) -> None:
        """Write nothing more. Takes no lock, which a fork might hold for ever."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _RecordedSpan(Span):
    """A span of a process that records."""

    __slots__ = ("_event", "_least_us", "_recorder")

    def __init__(self, recorder: _Recorder, least_s: float, event: dict[str, Any]) -> None:
        self._recorder, self._least_us, self._event = recorder, least_s * 1e6, event

    def add(self, **arguments: Argument) -> None:
        self._event["args"].update(arguments)

    def __enter__(self) -> Span:
        event, recorder = self._event, self._recorder
        event |= {"tid": recorder.thread(), "ts": now_us(), "tts": time.thread_time_ns() / 1000}
        if not max(self._least_us, recorder.limit_us):
            event["id"] = next(recorder.numbers)
            recorder.write("B", event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._recorder is not _recorder:  # the trace is over, or this is a fork
            return
        event = self._event
        event["dur"] = round(now_us() - event["ts"], 3)
        if event["tid"] == threading.get_native_id():
            event["tdur"] = round(time.thread_time_ns() / 1000 - event["tts"], 3)
        else:
            del event["tts"]
        if kind is not None:
            event["args"]["error"] = kind.__name__
        self._recorder.end_span(event, self._least_us)


def boot() -> str:
    """An identifier of this machine since its last start; empty where the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _process_start_ns() -> int:
    """When this process was started, by CLOCK_MONOTONIC; when this module was loaded if unknown."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            # The name stands in brackets and may hold anything; fields follow the last one.
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return _LOADED_NS
    # The system counts the start in hundredths of a second.
    return min(_LOADED_NS, time.monotonic_ns() - int(age_s * 1e9))


def _after_fork() -> None:
    """A fork has the parent's recorder, whose file is the parent's."""
    global _recorder
    parent, _recorder = _recorder, None
    if parent is not None:
        parent.close()
        _recorder = _Recorder(parent.folder, f"fork of {parent.process}")


_OFF = Span()
_recorder: _Recorder | None = None
os.register_at_fork(after_in_child=_after_fork)
