"""The part of a trace that is stored with its run, from which the report draws a time line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.traces.trace_events import Event, TracedProcess, started_at

#: Spans below this duration are not stored, and of more spans than this the longest are.
LEAST_US = 10_000
MOST_SPANS = 2_000
#: Spans inside that many others are not stored: a lane has room for no more.
DEPTHS = 4
#: Categories that would only repeat what other lanes show.
_LEFT_OUT = frozenset({"run", "waiting"})


def timeline(processes: Sequence[TracedProcess]) -> Mapping[str, Any]:
    """The longest spans as JSON values.

    `lanes` are the names of threads that have spans, the first thread of a process under the name
    of the process. `spans` are rows of lane, start and duration in ms, depth (0: in no other span
    of the lane; below `DEPTHS`), category, name and, if the span ended with its process, `killed`.
    `spans_left_out` counts spans of at least 10 ms beyond the largest number that is stored.
    """
    placed = [each for process in processes for each in _place(process)]
    longest = sorted(placed, key=lambda each: -each[0]["dur"])[:MOST_SPANS]
    longest.sort(key=lambda each: (each[0]["ts"], -each[0]["dur"]))
    origin_us = min((process.first_us for process in processes), default=0.0)
    lanes: dict[str, int] = {}
    rows = [
        [
            lanes.setdefault(lane, len(lanes)),
            round((span["ts"] - origin_us) / 1000, 2),
            round(span["dur"] / 1000, 2),
            depth,
            span["cat"],
            span["name"],
            *(["killed"] if span["args"].get("killed") else []),
        ]
        for span, lane, depth in longest
    ]
    return {
        "started_at": started_at(origin_us).isoformat(),
        "lanes": list(lanes),
        "spans": rows,
        "spans_left_out": len(placed) - len(rows),
    }


def _place(process: TracedProcess) -> Iterator[tuple[Event, str, int]]:
    """The spans of a process that may be stored, each with its lane and its depth there."""
    main, around = process.spans[0]["tid"], dict[str, list[Event]]()
    for span in process.spans:
        if span["dur"] < LEAST_US or span["cat"] in _LEFT_OUT:
            continue
        tid, end_us = span["tid"], span["ts"] + span["dur"]
        thread = process.threads.get(tid, f"thread {tid}")
        lane = process.name if tid == main else f"{process.name}: {thread}"
        # Sums of microseconds are exact to a thousandth.
        outer = [each for each in around.get(lane, []) if each["ts"] + each["dur"] > end_us - 0.001]
        around[lane] = outer
        if len(outer) < DEPTHS:
            yield span, lane, len(outer)
            outer.append(span)
