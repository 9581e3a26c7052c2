"""Two launches compared on the GPU, apart from the farm's own measurement.

Both run in turn on the same tensors, with the order changed from pair to pair. Before each launch
the L2 cache is overwritten. The pairs of a batch are enqueued while the GPU spins in a kernel of
its own, so that the events around a launch contain no time of the host: where the host is late, a
launch with one keyword more reads a microsecond longer. A batch during whose enqueueing the spin
ended is thrown away and repeated with a longer one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

#: Larger than any L2 cache of today.
_FLUSH_BYTES = 256 << 20
#: Pairs enqueued at once: their launches and events fit into the queue of a stream.
_BATCH = 16
#: Clock cycles of the first spin, about 4 ms, and how often the spin is doubled at most.
_SPIN_CYCLES, _DOUBLINGS = 8_000_000, 8
#: The normal quantile of a two-sided interval of 95 %.
_QUANTILE = 1.96


def judged(
    own: Callable[[], None],
    other: Callable[[], None],
    prepare: Callable[[], None],
    pairs: int,
    *,
    load_s: float = 0.0,
) -> dict[str, float | list[float]]:
    """Medians in microseconds and the median of own over other with its 95 % interval.

    Above 1, `other` is the faster one. prepare: runs before each launch and is not timed. load_s:
    seconds for which both run before each batch, until the power limit has lowered the clock of
    large products (docs/decisions/0009-under-the-power-limit.md).
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    launches = (own, other)
    for _ in range(10):
        for launch in launches:
            prepare()
            launch()

    def enqueue(count: int) -> list[_Timed]:
        events = []
        for at in range(count):
            for which in (0, 1) if at % 2 else (1, 0):
                prepare()
                flush.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                launches[which]()
                end.record()
                events.append((which, start, end))
        return events

    times: tuple[list[float], list[float]] = ([], [])
    for first in range(0, pairs, _BATCH):
        began = time.perf_counter()
        while time.perf_counter() - began < load_s:
            own()
            other()
            torch.cuda.synchronize()
        for which, start, end in _behind_a_spin(enqueue, min(_BATCH, pairs - first)):
            times[which].append(1e3 * start.elapsed_time(end))
    ratios = [left / right for left, right in zip(*times, strict=True)]
    return {
        "own_us": statistics.median(times[0]),
        "tuned_us": statistics.median(times[1]),
        "speedup": statistics.median(ratios),
        "interval": list(median_interval(ratios)),
        "pairs": pairs,
    }


def capture_graph(call: Callable[[], object], prepare: Callable[[], None]) -> Callable[[], None]:
    """What replays a call as a CUDA graph, so that no time of the host counts.

    The call runs a few times before it is captured; prepare runs before each of these.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            prepare()
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


_Timed = tuple[int, torch.cuda.Event, torch.cuda.Event]


def _behind_a_spin(enqueue: Callable[[int], list[_Timed]], count: int) -> list[_Timed]:
    """The finished events of a batch all of which was enqueued before the GPU began it."""
    for doubling in range(_DOUBLINGS + 1):
        torch.cuda.synchronize()
        torch.cuda._sleep(_SPIN_CYCLES << doubling)
        spun = torch.cuda.Event()
        spun.record()
        events = enqueue(count)
        in_time = not spun.query()
        torch.cuda.synchronize()
        if in_time:
            return events
    raise RuntimeError(f"the GPU began {count} pairs before the host had enqueued them")


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a median by order statistics."""
    ordered, half = sorted(values), _QUANTILE * len(values) ** 0.5 / 2
    low, high = int(len(values) / 2 - half), round(len(values) / 2 + half)
    return ordered[max(0, low)], ordered[min(len(values) - 1, high)]


def compare_to_ops(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Of the times of each arm, taken in turn, the median ratio over the arm `ops` with its
    interval."""
    found = {}
    for name, each in times.items():
        ratios = [one / own for one, own in zip(each, times["ops"], strict=True)]
        interval = list(median_interval(ratios))
        found[name] = {"over ops": statistics.median(ratios), "interval": interval}
    return found
