"""The choice of the GPU timing method of a task, and its timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from workers.job_records import Calibration
from workers.measure.timers.cupti import CuptiTimer
from workers.measure.timers.events import EventTimer
from workers.measure.timers.gpu_timer import DEFAULT_QUANTUM_US
from workers.measure.timers.graph import GraphTimer
from workers.measure.timers.timer import Timer, WarmUp

if TYPE_CHECKING:
    import torch

METHODS = ("events", "graph", "cupti")
CACHES = ("cold", "rotate", "warm")

_LONG_US = 200.0
#: Resolution of the activities that a profiler records.
_ACTIVITY_US = 0.001


def choose_method(duration_us: float, cache: str) -> str:
    """The method for a task whose kernels take about `duration_us` under a cache policy.

    It is chosen once for all candidates of a task, because methods differ by microseconds.

    - From 200 us on, `events`. A flush and a queued lead hide the launches, an event pair adds less
      than 1.5 %, equally for all candidates, and kernels that cannot be captured can be timed.
    - Below that, `graph`, under every cache policy. A launch from Python takes 10 to 60 us, longer
      than many kernels; without a flush that hides it, eager events include it. They ranked kernels
      of 4 to 6 us wrongly (pytorch#179246).
    - `cupti` only on request, as the reference for the other two. It needs no correction (an event
      pair reads 2.3 to 2.9 us too much on an H200, eager and in a graph alike), but a profiler
      slows the launches and costs milliseconds per session.
    """
    if cache not in CACHES:
        raise TunerError(f"no cache policy `{cache}`", f"use one of {', '.join(CACHES)}")
    return "events" if duration_us >= _LONG_US else "graph"


def overhead_key(method: str, cache: str) -> str:
    """The key of a method's overhead in a calibration, which depends on whether L2 is flushed."""
    return method if cache == "cold" else f"{method} unflushed"


def gpu_timer(
    method: str,
    flush: torch.Tensor | None,
    warm_up: WarmUp,
    calibration: Calibration,
    cache: str,
) -> Timer:
    """The timer of a method on the current GPU, corrected by the calibration.

    flush: zeroed before every run under `cold`, unused otherwise. Raises `TunerError` for an
    unknown method or cache policy, and for `cold` without a flush.
    """
    if method not in METHODS:
        raise TunerError(f"no timing method `{method}`", f"use one of {', '.join(METHODS)}")
    if cache not in CACHES:
        raise TunerError(f"no cache policy `{cache}`", f"use one of {', '.join(CACHES)}")
    if cache == "cold" and flush is None:
        raise TunerError("cache policy `cold` needs a flush buffer", "give a flush buffer")
    if method == "cupti":
        return CuptiTimer(flush, warm_up, cache=cache, quantum_us=_ACTIVITY_US)
    kind = EventTimer if method == "events" else GraphTimer
    return kind(
        flush,
        warm_up,
        overhead_us=calibration.overhead_us.get(overhead_key(method, cache), 0.0),
        cache=cache,
        quantum_us=calibration.quantum_us or DEFAULT_QUANTUM_US,
    )
