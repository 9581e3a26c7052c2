"""Events inside CUDA graphs: whole interleaved passes with no host between their launches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.errors import TunerError
from workers.measure.race.interleaving import Candidate
from workers.measure.timers.events import GpuClock, event_pairs, spin
from workers.measure.timers.slots import Slot, by_candidate, chunks, no_garbage_collection

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)


class CaptureFailed(TunerError):
    """A candidate cannot be put into a graph. Nobody was timed; the device can still be used.

    Times by different methods are not comparable: the whole set is to be timed by events instead.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"`{name}` cannot be captured in a CUDA graph: {reason}", "time it with method `events`"
        )
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[CaptureFailed], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class GraphTimer(GpuClock):
    """CUDA graphs of [flush, event, run, event] for up to `_CHUNK` runs, each replayed once.

    Nothing of the host is in the times, however slow a launch is. While the device replays one
    graph the host captures the next, so no graph is worth keeping for a second replay; and the run
    that is looked at (`settle`, captured behind its second event) is a timed one like any other.
    The first runs of a graph read slower: a run that is not timed stands before them and, without a
    flush, a spin.

    Raises CaptureFailed. Candidates must have run before: what is done once at a first launch
    (loading modules, choosing algorithms) is not captured.
    """

    method = "graph"

    _CHUNK = 16
    _HEAD_US = 50.0
    _stream: torch.cuda.Stream | None = None

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        import torch

        slots = self._plan(candidates, orders)
        if not slots:
            return [[] for _ in candidates]
        pairs = self._event_pairs(candidates[slots[0].candidate].name, len(slots))
        reserved = _reserved()
        graphs: list[torch.cuda.CUDAGraph] = []
        try:
            with self._side_stream() as stream, no_garbage_collection():
                pool = torch.cuda.graph_pool_handle()
                for chunk in chunks(slots, self._CHUNK):
                    graphs.append(self._capture(candidates, chunk, pool, stream))
                    graphs[-1].replay()
        finally:
            torch.cuda.synchronize()
            for graph in graphs:
                graph.reset()
            if _reserved() > reserved:
                # A pool nobody uses any more is not reused by others until it is given back.
                torch.cuda.empty_cache()
        times_us = [self._corrected(start.elapsed_time(stop) * 1000) for start, stop in pairs]
        self._warmth.touch()
        return by_candidate(len(candidates), slots, times_us)

    def _capture(
        self,
        candidates: Sequence[Candidate],
        chunk: Sequence[Slot],
        pool: Any,
        stream: torch.cuda.Stream,
    ) -> torch.cuda.CUDAGraph:
        """The graph of a chunk; whatever goes wrong is told as CaptureFailed."""
        import torch

        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        name = ""
        try:
            if self._flush is None:
                spin(self._HEAD_US)
            self._head(candidates[chunk[0].candidate], chunk[0])
            for slot in chunk:
                candidate = candidates[slot.candidate]
                name = candidate.name
                self._capture_slot(candidate, slot, stream)
            graph.capture_end()
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _abandon(graph, pool)
            raise CaptureFailed(name, reason) from error
        return graph

    def _head(self, candidate: Candidate, slot: Slot) -> None:
        candidate.enter()
        self._evict()
        slot.run()

    def _capture_slot(self, candidate: Candidate, slot: Slot, stream: torch.cuda.Stream) -> None:
        start, stop = self._pairs[slot.number]
        candidate.enter()
        if slot.settles:
            candidate.prime()
        self._evict()
        start.record(stream)
        result = slot.run()
        stop.record(stream)
        if slot.settles:
            candidate.settle(result)

    def _event_pairs(
        self, name: str, count: int
    ) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        try:
            return event_pairs(self._pairs, count, external=True)
        except RuntimeError as error:
            raise CaptureFailed(name, f"no events in graphs here ({error})") from error

    @contextlib.contextmanager
    def _side_stream(self) -> Iterator[torch.cuda.Stream]:
        """Captures need a stream of their own; it sees all that was queued before."""
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield self._stream


def _reserved() -> int:
    """Bytes the allocator holds; `memory_reserved` says the same, but slowly."""
    import torch

    held: int = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
    return held


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that went wrong, and mend what torch leaves behind it.

    When the driver calls a capture invalid, torch neither takes its memory pool out of use nor
    the random generators out of capture. The first is done here; a capture that succeeds, if of
    nothing, does the second.
    """
    import torch

    device = torch.cuda.current_device()
    if _quietly(graph.capture_end):
        graph.reset()
    elif torch.cuda.is_current_stream_capturing():
        raise TunerError("a CUDA graph's capture cannot be ended", "restart the worker")
    else:
        _quietly(lambda: torch._C._cuda_endAllocateToPool(device, pool))
        _quietly(lambda: torch._C._cuda_releasePool(device, pool))
    torch.cuda.synchronize()
    nothing = torch.cuda.CUDAGraph()
    nothing.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    nothing.capture_end()
    nothing.reset()
    torch.cuda.synchronize()


def _quietly(action: Callable[[], object]) -> bool:
    """Whether the action was possible."""
    try:
        action()
    except RuntimeError as error:
        _LOG.debug("after a failed capture: %s", error)
        return False
    return True
