"""The part of a trace that is stored with its run, from which the report draws a time line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.traces.chrome import started_at
from tuner.traces.trace_records import RecordedProcess, RecordedSpan

#: Spans below this duration are not stored, and of more spans than this the longest are.
LEAST_NS = 10_000_000
MOST_SPANS = 2_000
#: Spans inside that many others are not stored: a lane has room for no more.
DEPTHS = 4
#: Categories that would only repeat what other lanes show.
_LEFT_OUT = frozenset({"run", "waiting"})


def timeline(processes: Sequence[RecordedProcess]) -> Mapping[str, Any]:
    """The longest spans as JSON values.

    `lanes` are the names of threads that have spans, the first thread of a process under the name
    of the process. `spans` are rows of lane, start and duration in ms, depth (0: in no other span
    of the lane; below `DEPTHS`), category, name and, if the span ended with its process, `killed`.
    `spans_left_out` counts spans of at least 10 ms beyond the largest number that is stored.
    """
    placed = list(_place(processes))
    longest = sorted(placed, key=lambda each: -each[0].duration_ns)[:MOST_SPANS]
    origin_ns = min((process.first_ns for process in processes), default=0)
    lanes: dict[str, int] = {}
    rows = [
        [
            lanes.setdefault(lane, len(lanes)),
            round((span.start_ns - origin_ns) / 1e6, 2),
            round(span.duration_ns / 1e6, 2),
            depth,
            span.category,
            span.name,
            *(["killed"] if span.arguments.get("killed") else []),
        ]
        for span, lane, depth in sorted(longest, key=lambda each: _order(each[0]))
    ]
    return {
        "started_at": started_at(origin_ns).isoformat(),
        "lanes": list(lanes),
        "spans": rows,
        "spans_left_out": len(placed) - len(rows),
    }


def _place(processes: Sequence[RecordedProcess]) -> Iterator[tuple[RecordedSpan, str, int]]:
    """The spans that may be stored, each with its lane and its depth there."""
    around: dict[str, list[RecordedSpan]] = {}
    for lane, span in _assign_lanes(processes):
        if span.duration_ns < LEAST_NS:
            continue
        outer = [each for each in around.get(lane, []) if each.end_ns >= span.end_ns]
        around[lane] = outer
        imports = [each.category == "import" for each in (*outer, span)]
        # A large library would otherwise fill the lane with its own modules.
        if len(outer) < DEPTHS and (imports[-3:] != [True] * 3):
            around[lane] = [*outer, span]
            yield span, lane, len(outer)


def _order(span: RecordedSpan) -> tuple[int, int]:
    return span.start_ns, -span.end_ns


def _assign_lanes(processes: Sequence[RecordedProcess]) -> Iterator[tuple[str, RecordedSpan]]:
    """The spans that are shown, each with the name of its lane."""
    for process in processes:
        main = process.spans[0].tid
        for span in process.spans:
            if span.category not in _LEFT_OUT:
                thread = process.threads.get(span.tid, f"thread {span.tid}")
                yield process.name if span.tid == main else f"{process.name}: {thread}", span
