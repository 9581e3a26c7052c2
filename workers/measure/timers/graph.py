"""The method `graph`: events inside CUDA graphs, so that no launch comes from the host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.errors import TunerError
from workers.measure.timers.gpu_timer import GpuTimer, event_pairs, spin
from workers.measure.timers.slots import Slot, by_candidate, chunks, no_garbage_collection
from workers.measure.timers.timer import Candidate

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)


class CaptureFailed(TunerError):
    """A candidate cannot be captured in a graph. Nothing was timed; the device is still usable.

    Times by different methods are not comparable, so all candidates must then be timed by events.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"`{name}` cannot be captured in a CUDA graph: {reason}", "time it with method `events`"
        )
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[CaptureFailed], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class GraphTimer(GpuTimer):
    """CUDA graphs of [flush, event, run, event] for up to `_CHUNK` runs, each replayed once.

    Times contain no host time, however slow a launch is. The host captures the next graph while the
    device replays one, so a second replay would save nothing. The checked run is a timed run; the
    copy of its outputs is captured after its second event. The first runs of a graph read slower,
    so each graph starts with an untimed run and, without a flush, a spin.

    Raises CaptureFailed. Candidates must have run before, because one-time work of a first launch
    (loading modules, choosing algorithms) cannot be captured.
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
        reserved = _read_reserved()
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
            if _read_reserved() > reserved:
                # The memory of an unused pool is reused only after it is released.
                torch.cuda.empty_cache()
        times_us = [self._correct(start.elapsed_time(stop) * 1000) for start, stop in pairs]
        self._warm_up.mark_busy()
        return by_candidate(len(candidates), slots, times_us)

    def _capture(
        self,
        candidates: Sequence[Candidate],
        chunk: Sequence[Slot],
        pool: Any,
        stream: torch.cuda.Stream,
    ) -> torch.cuda.CUDAGraph:
        """The graph of a chunk. Turns every exception into CaptureFailed."""
        import torch

        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        name = ""
        try:
            if self._flush is None:
                spin(self._HEAD_US)
            self._run_untimed(candidates[chunk[0].candidate], chunk[0])
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

    def _run_untimed(self, candidate: Candidate, slot: Slot) -> None:
        candidate.enter()
        self._flush_cache()
        slot.run()

    def _capture_slot(self, candidate: Candidate, slot: Slot, stream: torch.cuda.Stream) -> None:
        start, stop = self._pairs[slot.number]
        candidate.enter()
        if slot.checked:
            candidate.before_checked_run()
        self._flush_cache()
        start.record(stream)
        result = slot.run()
        stop.record(stream)
        if slot.checked:
            candidate.after_checked_run(result)

    def _event_pairs(
        self, name: str, count: int
    ) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        try:
            return event_pairs(self._pairs, count, external=True)
        except RuntimeError as error:
            raise CaptureFailed(name, f"this device has no events in graphs ({error})") from error

    @contextlib.contextmanager
    def _side_stream(self) -> Iterator[torch.cuda.Stream]:
        """A separate stream, which captures need; it waits for all work queued before."""
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield self._stream


def _read_reserved() -> int:
    """Bytes that the allocator holds. `torch.cuda.memory_reserved` is slower."""
    import torch

    held: int = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
    return held


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a failed capture and restore torch's state.

    After an invalid capture torch leaves its memory pool in use and its random generators in
    capture mode. This function releases the pool; a second, empty capture resets the generators.
    """
    import torch

    device = torch.cuda.current_device()
    if _succeeds(graph.capture_end):
        graph.reset()
    elif torch.cuda.is_current_stream_capturing():
        raise TunerError("the capture of a CUDA graph cannot be ended", "restart the worker")
    else:
        _succeeds(lambda: torch._C._cuda_endAllocateToPool(device, pool))
        _succeeds(lambda: torch._C._cuda_releasePool(device, pool))
    torch.cuda.synchronize()
    nothing = torch.cuda.CUDAGraph()
    nothing.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    nothing.capture_end()
    nothing.reset()
    torch.cuda.synchronize()


def _succeeds(action: Callable[[], object]) -> bool:
    """Whether the action raised no RuntimeError."""
    try:
        action()
    except RuntimeError as error:
        _LOG.debug("after a failed capture: %s", error)
        return False
    return True
