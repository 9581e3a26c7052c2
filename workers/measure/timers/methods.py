"""Which clock of a GPU times a task, and how it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from workers.measure.race.interleaving import Timer
from workers.measure.timers.cupti import CuptiTimer
from workers.measure.timers.events import DEFAULT_QUANTUM_US, EventTimer
from workers.measure.timers.graph import GraphTimer
from workers.measure.timers.slots import Warmth
from workers.records import Calibration

if TYPE_CHECKING:
    import torch

METHODS = ("events", "graph", "cupti")
CACHES = ("cold", "rotate", "warm")

_LONG_US = 200.0


def choose_method(duration_us: float, cache: str) -> str:
    """The method for a task whose kernels take about `duration_us` under a cache policy.

    Chosen once for all candidates of a task, never per candidate: methods differ by microseconds.
    From 200 us on, `events`: a flush and a lead of the queue hide the launches, what an event pair
    adds is under 1.5 % and the same for everybody, and everything can be timed, captured or not.
    Below that, `graph`, whatever the cache: launching a kernel from Python takes 10 to 60 us, more
    than many kernels and, without a flush to hide it, part of what eager events read. A wrong
    ranking was seen for kernels of 4 to 6 us (pytorch#179246). `cupti` needs no correction at all
    (an event pair reads 2.3 to 2.9 us too much on an H200, eager and in a graph alike), but a
    profiler slows the launches and costs milliseconds a session: only on request, as the measure
    of the other two.
    """
    if cache not in CACHES:
        raise TunerError(f"no cache policy `{cache}`", f"use one of {', '.join(CACHES)}")
    return "events" if duration_us >= _LONG_US else "graph"


def overhead_key(method: str, cache: str) -> str:
    """Under what a calibration keeps the overhead of a method: it is another without a flush."""
    return method if cache == "cold" else f"{method} unflushed"


def gpu_timer(
    method: str,
    flush: torch.Tensor | None,
    warmth: Warmth,
    calibration: Calibration,
    cache: str,
) -> Timer:
    """The timer of a method on the current GPU, corrected by what the calibration found.

    flush: zeroed before every run under `cold`, not used otherwise.
    """
    if method not in METHODS:
        raise TunerError(f"no timing method `{method}`", f"use one of {', '.join(METHODS)}")
    if cache not in CACHES:
        raise TunerError(f"no cache policy `{cache}`", f"use one of {', '.join(CACHES)}")
    if cache == "cold" and flush is None:
        raise TunerError("a cold cache needs something to flush it with", "give a flush buffer")
    if method == "cupti":
        return CuptiTimer(flush, warmth, cache=cache)
    kind = EventTimer if method == "events" else GraphTimer
    return kind(
        flush,
        warmth,
        overhead_us=calibration.overhead_us.get(overhead_key(method, cache), 0.0),
        cache=cache,
        quantum_us=calibration.quantum_us or DEFAULT_QUANTUM_US,
    )
