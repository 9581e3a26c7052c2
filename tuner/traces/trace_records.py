"""The records of all processes, read from the folder of a trace."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner import tracing

#: The most spans of a trace; the longest are kept. Perfetto opens files of this size in seconds.
MOST_SPANS = 200_000


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """One span of a thread."""

    tid: int
    #: Nanoseconds of CLOCK_MONOTONIC.
    start_ns: int
    end_ns: int
    #: One of `tuner.tracing.CATEGORIES`.
    category: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: The processor time of the thread at the start, and of the span; None where it is not known.
    cpu_start_ns: int | None = None
    cpu_ns: int | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """One process and its spans."""

    #: Its number in the trace, unique there: the process id unless the system used that id twice.
    pid: int
    name: str
    #: Names of its threads.
    threads: Mapping[int, str]
    #: By start; a span that contains another one comes before it.
    spans: Sequence[RecordedSpan]

    @property
    def first_ns(self) -> int:
        return min(span.start_ns for span in self.spans)

    @property
    def last_ns(self) -> int:
        return max(span.end_ns for span in self.spans)


@dataclass(slots=True)
class _File:
    """The records of one file while it is read."""

    pid: int = 0
    boot: str = ""
    name: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    spans: list[RecordedSpan] = field(default_factory=list)
    #: Spans without an end, by number.
    open: dict[int, RecordedSpan] = field(default_factory=dict)
    exits: list[tuple[int, int]] = field(default_factory=list)
    last_ns: int = 0

    def take(self, kind: str, *values: Any) -> None:
        """Take one record; the kinds are those of `tuner.tracing`."""
        if kind == "process":
            self.pid, self.boot, self.name = values
        elif kind == "name":
            (self.name,) = values
        elif kind == "thread":
            self.threads[values[0]] = values[1]
        elif kind == "begin":
            number, tid, start_ns, *facts = values
            self.open[number] = RecordedSpan(tid, start_ns, start_ns, *facts)
            self.last_ns = max(self.last_ns, start_ns)
        elif kind == "end":
            number, end_ns, added, cpu_end_ns = values
            begun = self.open.pop(number)
            arguments, started = {**begun.arguments, **added}, begun.cpu_start_ns
            cpu_ns = None if None in (started, cpu_end_ns) else cpu_end_ns - started
            ended = replace(begun, end_ns=end_ns, arguments=arguments, cpu_ns=cpu_ns)
            self.spans.append(ended)
            self.last_ns = max(self.last_ns, end_ns)
        elif kind == "span":
            tid, start_ns, duration_ns, *facts = values
            end_ns = start_ns + duration_ns
            self.spans.append(RecordedSpan(tid, start_ns, end_ns, *facts))
            self.last_ns = max(self.last_ns, end_ns)
        elif kind == "exit":
            self.exits.append((values[0], values[1]))


def read(folder: Path) -> list[RecordedProcess]:
    """The processes of this machine that wrote spans, by their first span.

    A span without an end ends with its process, or now if the process is alive, and has the
    argument `killed` or `open`. Of more than `MOST_SPANS` spans the longest remain.
    """
    files = [_read_file(path) for path in sorted(folder.glob("*.jsonl"))]
    files = [file for file in files if file.pid and file.boot == tracing.boot()]
    exits = sorted(pair for file in files for pair in file.exits)
    for file in files:
        file.spans += _end_spans(file, exits)
    files = sorted((file for file in files if file.spans), key=_first_ns)
    least_ns = _least_ns(files)
    names, pids = _names(files), _pids(files)
    processes = []
    for file, name, pid in zip(files, names, pids, strict=True):
        kept = [span for span in file.spans if span.duration_ns >= least_ns]
        kept.sort(key=lambda span: (span.start_ns, -span.end_ns))
        if kept:
            processes.append(RecordedProcess(pid, name, file.threads, kept))
    return processes


def since(processes: Sequence[RecordedProcess], moment_ns: int) -> list[RecordedProcess]:
    """The processes with only those spans that began at that moment or later."""
    later = [
        replace(one, spans=[span for span in one.spans if span.start_ns >= moment_ns])
        for one in processes
    ]
    return [one for one in later if one.spans]


def _read_file(path: Path) -> _File:
    """The readable records of one file: a kill or a full disk may cut its last line short."""
    file = _File()
    with path.open("rb") as lines:
        for line in lines:
            try:
                file.take(*json.loads(line))
            except (ValueError, TypeError, KeyError):
                continue
    return file


def _end_spans(file: _File, exits: Sequence[tuple[int, int]]) -> Iterator[RecordedSpan]:
    """The open spans of a file with an end."""
    if not file.open:
        return
    first_ns = min(span.start_ns for span in [*file.spans, *file.open.values()])
    seen = next((at for pid, at in exits if pid == file.pid and at >= first_ns), None)
    living = seen is None and os.path.exists(f"/proc/{file.pid}")
    end_ns = time.monotonic_ns() if living else max(seen or 0, file.last_ns)
    state = {"open" if living else "killed": True}
    for span in file.open.values():
        yield replace(span, end_ns=end_ns, arguments={**span.arguments, **state})


def _first_ns(file: _File) -> int:
    return min(span.start_ns for span in file.spans)


def _least_ns(files: Sequence[_File]) -> int:
    """The duration from which on spans remain."""
    durations = sorted((span.duration_ns for file in files for span in file.spans), reverse=True)
    return durations[MOST_SPANS - 1] + 1 if len(durations) > MOST_SPANS else 0


def _names(files: Sequence[_File]) -> list[str]:
    """The name of each process: a second one of the same name is a standby or a replacement."""
    ends: dict[str, int] = {}
    uses = Counter[str]()
    names = []
    for file in files:
        name = file.name
        if name not in ends:
            names.append(name)
        elif _first_ns(file) < ends[name]:
            uses[f"{name} standby"] += 1
            number = uses[f"{name} standby"]
            names.append(f"{name} standby" + (f" {number}" if number > 1 else ""))
        else:
            uses[name] += 1
            names.append(f"{name} ({uses[name] + 1})")
        ends[name] = max(ends.get(name, 0), file.last_ns)
    return names


def _pids(files: Sequence[_File]) -> list[int]:
    """The number of each process, unique in the trace."""
    taken: set[int] = set()
    numbers = []
    for file in files:
        pid = file.pid
        while pid in taken:
            pid += 1 << 22  # the system's largest process id
        taken.add(pid)
        numbers.append(pid)
    return numbers
