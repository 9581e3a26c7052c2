"""Two launches compared on the GPU, apart from the farm's own measurement.

Both run in turn on the same tensors, with the order changed from pair to pair. Before each launch
the L2 cache is overwritten, which keeps the GPU busy while the host enqueues, so that the events
around the launch contain no host time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

#: Larger than any L2 cache of today, and slower to write than a launch is to enqueue.
_FLUSH_BYTES = 256 << 20
#: The normal quantile of a two-sided interval of 95 %.
_QUANTILE = 1.96


def judged(
    own: Callable[[], None], other: Callable[[], None], prepare: Callable[[], None], pairs: int
) -> dict[str, float | list[float]]:
    """Medians in microseconds and the median of own over other with its 95 % interval.

    Above 1, `other` is the faster one. prepare: runs before each launch and is not timed.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    launches = (own, other)
    for _ in range(10):
        for launch in launches:
            prepare()
            launch()
    times: tuple[list[float], list[float]] = ([], [])
    events = []
    for at in range(pairs):
        for which in (0, 1) if at % 2 else (1, 0):
            prepare()
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launches[which]()
            end.record()
            events.append((which, start, end))
    torch.cuda.synchronize()
    for which, start, end in events:
        times[which].append(1e3 * start.elapsed_time(end))
    ratios = [left / right for left, right in zip(*times, strict=True)]
    return {
        "own_us": statistics.median(times[0]),
        "tuned_us": statistics.median(times[1]),
        "speedup": statistics.median(ratios),
        "interval": list(median_interval(ratios)),
        "pairs": pairs,
    }


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a median by order statistics."""
    ordered, half = sorted(values), _QUANTILE * len(values) ** 0.5 / 2
    low, high = int(len(values) / 2 - half), round(len(values) / 2 + half)
    return ordered[max(0, low)], ordered[min(len(values) - 1, high)]
