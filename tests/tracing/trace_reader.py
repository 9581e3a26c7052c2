"""Reads a trace file as Perfetto does, and checks the rules of its format."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The categories that docs/tracing.md lists.
CATEGORIES = {
    *("run", "start", "import", "build", "job", "verify"),
    *("timing", "strategy", "database", "output", "end", "waiting"),
}
#: Categories that say nothing about what happened.
_AROUND = ("run", "waiting")


class Trace:
    """The events of a valid trace file."""

    def __init__(self, path: Path) -> None:
        self.document = json.loads(path.read_text(), parse_constant=_refuse)
        events = self.document["traceEvents"]
        self.spans = [event for event in events if event["ph"] == "X"]
        names = [event for event in events if event["ph"] == "M"]
        assert len(self.spans) + len(names) == len(events)
        self.processes = {
            event["pid"]: event["args"]["name"]
            for event in names
            if event["name"] == "process_name"
        }
        self.threads = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in names
            if event["name"] == "thread_name"
        }
        self._check()

    def _check(self) -> None:
        for event in self.spans:
            assert isinstance(event["name"], str), event
            assert event["cat"] in CATEGORIES, event
            for number in ("pid", "tid"):
                assert type(event[number]) is int, event
            for time_us in ("ts", "dur"):
                assert type(event[time_us]) in (int, float), event
                assert event[time_us] >= 0, event
            assert isinstance(event["args"], dict), event
            assert ("tts" in event) == ("tdur" in event), event
            # The two clocks tick differently.
            assert 0 <= event.get("tdur", 0) <= event["dur"] * 1.01 + 20_000, event
            assert event["pid"] in self.processes, event
            assert (event["pid"], event["tid"]) in self.threads, event
        assert len(set(self.processes.values())) == len(self.processes)
        self._check_nesting()

    def _check_nesting(self) -> None:
        """Spans of a thread contain each other or are apart."""
        lanes = defaultdict(list)
        for event in self.spans:
            lanes[event["pid"], event["tid"]].append(event)
        for events in lanes.values():
            open_until: list[float] = []
            for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
                end = event["ts"] + event["dur"]
                while open_until and open_until[-1] <= event["ts"] + 0.001:
                    open_until.pop()
                assert not open_until or end <= open_until[-1] + 0.001, event
                open_until.append(end)

    def named(self, name: str, process: str = "") -> list[dict[str, Any]]:
        """The spans whose name begins so, of processes whose name begins so."""
        return [
            event
            for event in self.spans
            if event["name"].startswith(name) and self.processes[event["pid"]].startswith(process)
        ]

    @property
    def duration_us(self) -> float:
        return float(max(event["ts"] + event["dur"] for event in self.spans))

    def explained_us(self) -> float:
        """The time in which any process was in a span that says what it did."""
        said = [event for event in self.spans if event["cat"] not in _AROUND]
        return _union([(event["ts"], event["ts"] + event["dur"]) for event in said])


def _union(intervals: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, 0.0
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
