"""The recorded launches of one kernel, found again by matchers or by their keys.

Every recorded launch has an entry in an index by its scalars, which tells most launches of a kernel
apart; the matchers of an entry compare the rest.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from tuner.capturing.call_records import Call
from tuner.capturing.launch_matcher import Match, matcher_of
from tuner.capturing.specialization import SCALARS

# -- the GPU time of a repeated launch, from its second to fourth execution ------------------------
_TIMED = 3


class GpuTime:
    """Pairs of CUDA events around a few launches. Without a GPU there is nothing to time."""

    __slots__ = ("_pairs", "complete")

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        #: Whether no further launch is timed.
        self.complete = not _has_gpu()

    def time_launch(self, run: Callable[[], Any]) -> Any:
        import torch

        if len(self._pairs) >= _TIMED or torch.cuda.is_current_stream_capturing():
            self.complete = len(self._pairs) >= _TIMED
            return run()
        events: Any = torch.cuda.Event
        start, end = events(enable_timing=True), events(enable_timing=True)
        start.record()
        result = run()
        end.record()
        self._pairs.append((start, end))
        return result

    def total_us(self, count: int) -> float | None:
        """Microseconds of all launches of this kind; None where none was timed."""
        if not self._pairs:
            return None
        self._pairs[-1][1].synchronize()
        return count * float(median(1e3 * start.elapsed_time(end) for start, end in self._pairs))


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


# -- the recorded launches of one kernel, found again by matchers or by their keys -----------------
#: Matchers of launches with equal scalars that are kept; for further ones keys are computed.
_MOST_MATCHERS = 8


class Known:
    """A recorded launch, and what must stay alive for its key to stay unique."""

    __slots__ = ("_read", "alive", "call", "count", "time")

    def __init__(self, call: Call, *alive: Any) -> None:
        self.call, self.alive = call, alive
        #: Counts one launch. A step of this iterator is atomic, and takes less than a lock.
        self.count: Callable[[], int] = itertools.count().__next__
        self._read = 0
        self.time = GpuTime()

    def launches(self) -> int:
        """How often it was launched. Not for several threads at once."""
        self._read += 1
        return self.count() + 1 - self._read


class KnownLaunches:
    """The recorded launches of a kernel. Changes are made under the recorder's lock."""

    def __init__(self, kernel: Any) -> None:
        #: The kernel stays alive, so that no other one gets its id.
        self.kernel = kernel
        self.by_key: dict[Any, Known] = {}
        #: The matcher that accepted the latest launch, and its record.
        self.latest: tuple[Match, Known | None] = (_nothing, None)
        self._by_scalars: dict[Any, tuple[tuple[Match, Known], ...]] = {}
        self._is_indexed = True

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Known | None:
        """The record of a launch, as far as matchers recognise it. Raises errors of arguments."""
        for found in self._by_scalars.get(_scalars_of(args, kwargs), ()):
            if found[0](args, kwargs):
                self.latest = found
                return found[1]
        return None

    def is_new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a launch is surely none of the recorded ones, since its scalars differ."""
        return self._is_indexed and _scalars_of(args, kwargs) not in self._by_scalars

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], known: Known) -> None:
        """Let matchers recognise launches like this one from now on."""
        try:
            match = matcher_of(args, kwargs)
        except Exception:  # such as a tensor without memory
            match = None
        if match is None:
            self._is_indexed = False
            return
        self.latest = (match, known)
        scalars = _scalars_of(args, kwargs)
        entry = self._by_scalars.get(scalars, ())
        self._by_scalars[scalars] = (self.latest, *entry)[:_MOST_MATCHERS]


def _scalars_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments, without NaN and what is no scalar."""
    values = (*args, *kwargs.values())
    return tuple([v if type(v) in SCALARS and v == v else None for v in values])


def _nothing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return False
