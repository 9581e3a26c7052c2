"""The events of all processes, joined from the folder of a trace into one file.

The file is in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open. Source:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from tuner.base import tracing

#: The most spans of a trace; the longest are kept. Perfetto opens files of this size in seconds.
MOST_SPANS = 200_000
#: An event as `tuner.base.tracing` writes it.
Event: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class TracedProcess:
    """One process and its spans."""

    #: Unique in the trace: the process id unless the system used that id twice.
    pid: int = 0
    name: str = ""
    #: Names of its threads.
    threads: dict[int, str] = field(default_factory=dict)
    #: By start; a span that contains another one comes before it.
    spans: list[Event] = field(default_factory=list)
    #: Begins without an end, by `id`.
    open: dict[int, Event] = field(default_factory=dict)
    #: When this process saw the end of others, and their numbers.
    exits: list[tuple[float, int]] = field(default_factory=list)
    last_us: float = 0.0

    @property
    def first_us(self) -> float:
        return float(min(span["ts"] for span in (*self.spans, *self.open.values())))

    def take(self, event: Event) -> None:
        """Take one event of the file of the process."""
        self.pid, kind = event["pid"], event["ph"]
        if kind == "M":
            name = event["args"]["name"]
            if event["name"] == "process_name":
                self.name = name
            else:
                self.threads[event["tid"]] = name
            return
        if kind == "i":
            self.exits.append((event["ts"], event["args"]["pid"]))
        elif kind == "B":
            self.open[event["id"]] = event
        else:
            self.open.pop(event.pop("id", None), None)
            self.spans.append(event)
        self.last_us = max(self.last_us, event["ts"] + event.get("dur", 0.0))


def join_files(folder: Path, *, from_us: float = 0.0) -> list[TracedProcess]:
    """The processes of this machine with spans that began at that moment or later, by first span.

    A span without an end ends with its process, or now if the process is alive, and has the
    argument `killed` or `open`. Of more than `MOST_SPANS` spans the longest remain.
    """
    files = [_read_file(path) for path in sorted(folder.glob(f"{tracing.boot()}-*.jsonl"))]
    exits = sorted(pair for each in files for pair in each.exits)
    processes = [each for each in files if each.spans or each.open]
    processes.sort(key=lambda each: each.first_us)
    for process in processes:
        _end_spans(process, exits)
    _tell_apart(processes)
    durations = sorted((span["dur"] for each in processes for span in each.spans), reverse=True)
    limit_us = durations[MOST_SPANS] if len(durations) > MOST_SPANS else -1.0
    for process in processes:
        kept = [each for each in process.spans if each["dur"] > limit_us and each["ts"] >= from_us]
        process.spans = sorted(kept, key=lambda span: (span["ts"], -span["dur"]))
    return [each for each in processes if each.spans]


def encode(processes: Sequence[TracedProcess]) -> bytes:
    """The bytes of a trace file. Its times are microseconds since the first span."""
    origin_us = min((process.first_us for process in processes), default=0.0)
    facts = {
        "clock": "CLOCK_MONOTONIC",
        "host": platform.node(),
        "started_at": started_at(origin_us).isoformat(),
    }
    events = list(_events(processes, origin_us))
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(document, separators=(",", ":")).encode()


def started_at(monotonic_us: float) -> datetime:
    """A moment of CLOCK_MONOTONIC as UTC."""
    return datetime.now(UTC) - timedelta(microseconds=time.monotonic_ns() / 1000 - monotonic_us)


def _events(processes: Sequence[TracedProcess], origin_us: float) -> Iterator[Event]:
    for place, process in enumerate(processes):
        pid = process.pid
        own = {"ph": "M", "pid": pid, "tid": pid, "ts": 0}
        yield own | {"name": "process_name", "args": {"name": process.name}}
        yield own | {"name": "process_sort_index", "args": {"sort_index": place}}
        for tid in sorted({span["tid"] for span in process.spans}):
            name = process.threads.get(tid, f"thread {tid}")
            yield own | {"name": "thread_name", "tid": tid, "args": {"name": name}}
        for span in process.spans:
            yield span | {"pid": pid, "ts": round(span["ts"] - origin_us, 3)}


def _read_file(path: Path) -> TracedProcess:
    """The readable events of one file: a kill or a full disk may cut its last line short."""
    process = TracedProcess()
    with path.open("rb") as lines:
        for line in lines:
            try:
                process.take(json.loads(line))
            except (ValueError, TypeError, KeyError):
                continue
    return process


def _end_spans(process: TracedProcess, exits: Sequence[tuple[float, int]]) -> None:
    """Give the open spans of a process an end."""
    first_us, pid = process.first_us, process.pid
    seen_us = next((at_us for at_us, gone in exits if gone == pid and at_us >= first_us), None)
    living = seen_us is None and os.path.exists(f"/proc/{pid}")
    end_us = tracing.now_us() if living else max(seen_us or 0.0, process.last_us)
    for begun in process.open.values():
        del begun["id"], begun["tts"]
        begun["args"]["open" if living else "killed"] = True
        process.spans.append(begun | {"ph": "X", "dur": end_us - begun["ts"]})
    process.open.clear()


def _tell_apart(processes: Sequence[TracedProcess]) -> None:
    """Make names and numbers unique: a second process of a name is a standby or a replacement."""
    ends_us: dict[str, float] = {}
    uses = Counter[str]()
    pids: set[int] = set()
    for process in processes:
        name, pattern = process.name, "{} ({})"
        ended_us = ends_us.get(name, 0.0)
        ends_us[name] = max(ended_us, process.last_us)
        if process.first_us < ended_us:
            name, pattern = f"{name} standby", "{} {}"
        uses[name] += 1
        process.name = name if uses[name] == 1 else pattern.format(name, uses[name])
        while process.pid in pids:
            process.pid += 1 << 22  # the system's largest process id
        pids.add(process.pid)
