"""Spans: what a thread does from one moment to another, recorded by every process of a run.

    with span("compile", "build", config="BLOCK_M=64"):
        ...

    @traced("write the report", "output")
    def write(...): ...

A trace is on while the environment variable `TUNER_TRACE_FOLDER` names a folder. Child processes
inherit the variable; each process writes a file of its own there, and `tuner.traces` joins the
files into one trace. While no trace is on, a span costs one check of a module variable.

A record is one line, written by one call when it happens. A process that is killed therefore loses
nothing but the ends of its open spans. A file is a JSON array per line:

    ["process", pid, boot, name]            first line; boot identifies the machine since its start
    ["name", name]                          the process has another name from now on
    ["thread", tid, name]
    ["begin", number, tid, ns, category, name, arguments, cpu_ns]
    ["end", number, ns, arguments, cpu_ns]
    ["span", tid, ns, duration_ns, category, name, arguments, cpu_ns, cpu_duration_ns]
    ["exit", pid, ns]                       this process has seen the end of process pid

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; `cpu_ns` is the
processor time of the thread, null where it is not known. Standard library only; every package may
import this module.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

#: Names the folder of the trace that is on; child processes inherit it.
VARIABLE = "TUNER_TRACE_FOLDER"
#: What a span may be about, with its meaning.
CATEGORIES = {
    "run": "a whole command",
    "start": "a process, a pool or a device starts",
    "import": "a module is imported",
    "build": "a variant is compiled",
    "job": "a device process works on a job",
    "verify": "inputs, references, correctness gate",
    "timing": "launches are timed",
    "strategy": "the strategy suggests or learns",
    "database": "the database is opened, read or written",
    "output": "report and tables are written",
    "end": "processes are closed",
    "waiting": "a thread waits for another process",
}
#: Every time a process has written this many spans, the least duration that it writes doubles,
#: from 1 ms on. This bounds the file of a run of many hours.
_SPANS_PER_STEP = 20_000
_FIRST_LIMIT_NS = 1_000_000
#: Imports below this duration are not written.
_LEAST_IMPORT_S = 0.02
#: A process that was started longer ago than this was not started for the traced work.
_LONGEST_START_S = 60.0
#: When this module was loaded.
_LOADED_NS = time.monotonic_ns()

Argument = str | int | float | bool | None
P = ParamSpec("P")
R = TypeVar("R")


class Span(Protocol):
    """An open span."""

    def add(self, **arguments: Argument) -> None:
        """Add arguments that are known only during the span."""
        ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def span(name: str, category: str, /, *, least_s: float = 0.0, **arguments: Argument) -> Span:
    """A context manager that records its block as a span of the current thread.

    category: one of `CATEGORIES`. least_s: shorter spans are not written, and neither
    is one that a kill interrupts. arguments: facts shown with the span.
    """
    recorder = _recorder
    if recorder is None:
        return _OFF
    return _OpenSpan(recorder, name, category, least_s, arguments)


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


def active() -> bool:
    """Whether this process records spans."""
    return _recorder is not None


def begin(folder: Path, process: str) -> None:
    """Record this process under that name, and the children that it starts from now on."""
    os.environ[VARIABLE] = f"{folder}"
    join(process)


def end() -> None:
    """Stop recording this process and the children that it starts from now on."""
    global _recorder
    recorder, _recorder = _recorder, None
    os.environ.pop(VARIABLE, None)
    _IMPORTS.remove()
    if recorder is not None:
        recorder.close()


def join(process: str) -> None:
    """Record this process under that name if its environment names a trace, else stop recording.

    The first call in a young process also records the start of Python.
    """
    global _recorder
    folder, recorder = os.environ.get(VARIABLE), _recorder
    if recorder is not None and folder == recorder.folder:
        recorder.rename(process)
        return
    if recorder is not None:
        recorder.close()
        _recorder = None
    if not folder or not os.path.isdir(folder):
        return
    _recorder = _Recorder(folder, process)
    started_ns = _process_start_ns()
    if time.monotonic_ns() - started_ns < _LONGEST_START_S * 1e9:
        record("start of Python", "start", started_ns, _LOADED_NS)
        record("imports before the trace", "start", _LOADED_NS, time.monotonic_ns())
    _IMPORTS.install()


def record(name: str, category: str, start_ns: int, end_ns: int, **arguments: Argument) -> None:
    """Record a span of the current thread that is over."""
    if _recorder is not None:
        _recorder.span(start_ns, end_ns, category, name, arguments, None, None)


def process_ended(pid: int | None) -> None:
    """Record that a child process has ended, which ends the spans that it left open."""
    if _recorder is not None and pid is not None:
        _recorder.write("exit", pid, time.monotonic_ns())


class _Off:
    """The span of a process that records nothing."""

    def add(self, **arguments: Argument) -> None:
        """Ignore the arguments."""

    def __enter__(self) -> _Off:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Recorder:
    """Writes the records of one process. The file is made by the first record."""

    def __init__(self, folder: str, process: str) -> None:
        self.folder, self.process = folder, process
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._descriptor = -1
        self._broken = False
        #: Threads whose names are written; the system uses the number of an ended thread again.
        self._threads: set[tuple[int, str]] = set()
        self._written = 0
        self.numbers = itertools.count()

    @property
    def limit_ns(self) -> int:
        """The least duration that is written now."""
        steps = self._written // _SPANS_PER_STEP
        return _FIRST_LIMIT_NS << min(steps - 1, 20) if steps else 0

    def rename(self, process: str) -> None:
        self.process = process
        if self._descriptor >= 0:
            self.write("name", process)

    def begin(self, number: int, now_ns: int, *facts: object) -> None:
        self._written += 1
        self.write("begin", number, self._thread(), now_ns, *facts)

    def span(self, start_ns: int, end_ns: int, *facts: object) -> None:
        if end_ns - start_ns >= self.limit_ns:
            self._written += 1
            self.write("span", self._thread(), start_ns, end_ns - start_ns, *facts)

    def write(self, *values: object) -> None:
        """Append one record; a full disk ends the records and not the work."""
        if self._broken:
            return
        try:
            if self._descriptor < 0:
                self._open()
            os.write(self._descriptor, _line(values))
        except OSError:
            self._broken = True

    def close(self) -> None:
        """Write nothing more. Takes no lock, which a fork might hold for ever."""
        self._broken = True
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> None:
        with self._lock:
            if self._descriptor >= 0 or self._broken:
                return
            path = os.path.join(self.folder, f"{self._pid}-{time.monotonic_ns()}.jsonl")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            os.write(descriptor, _line(("process", self._pid, boot(), self.process)))
            self._descriptor = descriptor

    def _thread(self) -> int:
        tid, name = threading.get_native_id(), threading.current_thread().name
        if (tid, name) not in self._threads:
            self._threads.add((tid, name))
            self.write("thread", tid, name)
        return tid


class _OpenSpan:
    """A span of a process that records."""

    def __init__(
        self,
        recorder: _Recorder,
        name: str,
        category: str,
        least_s: float,
        arguments: dict[str, Argument],
    ) -> None:
        self._recorder, self._name, self._category = recorder, name, category
        self._least_ns = max(int(least_s * 1e9), recorder.limit_ns)
        self._arguments = arguments
        #: Arguments that the begin has not carried.
        self._added: dict[str, Argument] = {}
        self._number, self._start_ns = -1, 0
        self._thread, self._start_cpu_ns = 0, 0

    def add(self, **arguments: Argument) -> None:
        """Add arguments that are known only during the span."""
        self._added.update(arguments)

    def __enter__(self) -> _OpenSpan:
        self._start_ns, self._start_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        self._thread = threading.get_ident()
        if not self._least_ns:
            self._number = next(self._recorder.numbers)
            facts = (self._category, self._name, self._arguments, self._start_cpu_ns)
            self._recorder.begin(self._number, self._start_ns, *facts)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is not _recorder:  # the trace is over, or this is a fork
            return
        now_ns = time.monotonic_ns()
        if kind is not None:
            self._added["error"] = kind.__name__
        if self._number >= 0:
            self._recorder.write("end", self._number, now_ns, self._added, self._cpu_ns())
        elif now_ns - self._start_ns >= self._least_ns:
            cpu_ns = self._cpu_ns()
            took_ns = None if cpu_ns is None else cpu_ns - self._start_cpu_ns
            facts = (self._category, self._name, {**self._arguments, **self._added})
            self._recorder.span(self._start_ns, now_ns, *facts, self._start_cpu_ns, took_ns)

    def _cpu_ns(self) -> int | None:
        """The thread's processor time; None in another thread than that of the begin."""
        same = self._thread == threading.get_ident()
        return time.thread_time_ns() if same else None


class _TimedImports:
    """A finder before all others that finds nothing itself and times what the others find."""

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of another finder, whose loader also records a span."""
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                _time_loader(spec)
                return spec
        return None

    def invalidate_caches(self) -> None:
        """Nothing is cached."""


def _time_loader(spec: ModuleSpec) -> None:
    """Record the execution of a module. Only loaders that serve a single module are changed."""
    loader = spec.loader
    if type(loader) not in (SourceFileLoader, ExtensionFileLoader):
        return
    changed: Any = loader
    execute = changed.exec_module

    def exec_module(module: ModuleType) -> None:
        changed.__dict__.pop("exec_module", None)
        with span(f"import {spec.name}", "import", least_s=_LEAST_IMPORT_S):
            execute(module)

    changed.exec_module = exec_module


def _line(values: object) -> bytes:
    return json.dumps(values, separators=(",", ":"), default=str).encode() + b"\n"


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


_OFF = _Off()
_IMPORTS = _TimedImports()
_recorder: _Recorder | None = None
os.register_at_fork(after_in_child=_after_fork)
