"""The GPU time of a repeated launch, from its second to fourth execution."""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

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
