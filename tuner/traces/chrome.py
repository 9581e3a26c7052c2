"""A trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tuner.traces.trace_records import RecordedProcess, RecordedSpan


def document(processes: Sequence[RecordedProcess]) -> dict[str, Any]:
    """The trace as JSON values: complete events (`X`), names as metadata events (`M`).

    Times are microseconds since the first span.
    """
    origin_ns = min((process.first_ns for process in processes), default=0)
    return {
        "traceEvents": list(_events(processes, origin_ns)),
        "displayTimeUnit": "ms",
        "otherData": {
            "clock": "CLOCK_MONOTONIC",
            "host": platform.node(),
            "started_at": started_at(origin_ns).isoformat(),
        },
    }


def encode(processes: Sequence[RecordedProcess]) -> bytes:
    """The document as the bytes of a file."""
    return json.dumps(document(processes), separators=(",", ":"), default=str).encode()


def started_at(monotonic_ns: int) -> datetime:
    """A moment of CLOCK_MONOTONIC as UTC."""
    age = timedelta(microseconds=(time.monotonic_ns() - monotonic_ns) / 1000)
    return datetime.now(UTC) - age


def _events(processes: Sequence[RecordedProcess], origin_ns: int) -> Iterator[dict[str, Any]]:
    for place, process in enumerate(processes):
        pid = process.pid
        yield _metadata("process_name", pid, pid, {"name": process.name})
        yield _metadata("process_sort_index", pid, pid, {"sort_index": place})
        for tid in sorted({span.tid for span in process.spans}):
            name = process.threads.get(tid, f"thread {tid}")
            yield _metadata("thread_name", pid, tid, {"name": name})
        for span in process.spans:
            yield {
                "ph": "X",
                "name": span.name,
                "cat": span.category,
                "ts": (span.start_ns - origin_ns) / 1000,
                "dur": span.duration_ns / 1000,
                "pid": pid,
                "tid": span.tid,
                "args": dict(span.arguments),
                **_processor_time(span),
            }


def _processor_time(span: RecordedSpan) -> dict[str, float]:
    """The thread's clock at the start, and its duration, where both are known."""
    if span.cpu_start_ns is None or span.cpu_ns is None:
        return {}
    return {"tts": span.cpu_start_ns / 1000, "tdur": span.cpu_ns / 1000}


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": arguments}
