"""The method `cupti`: the device's own records of kernels, read through torch.profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.errors import TunerError
from workers.measure.timers.gpu_timer import GpuTimer, spin
from workers.measure.timers.slots import Slot, by_candidate, chunks, no_garbage_collection
from workers.measure.timers.timer import Candidate

if TYPE_CHECKING:
    import torch

#: Part of the name of the marker kernel before and after each run; no candidate launches it.
MARKER = "nextafter"

#: Records of the profiler that are waits of the host, not activities of the device.
_WAITING = frozenset({"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"})


class CuptiFailed(TunerError):
    """The profiler's records are incomplete or do not identify the runs."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "measure with method `graph` or `events`")

    def __reduce__(self) -> tuple[type[CuptiFailed], tuple[str]]:  # type: ignore[override]
        return type(self), (self.message,)


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or memset on the device; times in ns of one clock."""

    name: str
    start_ns: int
    end_ns: int


def runs_of(activities: Sequence[Activity], runs: int) -> list[list[Activity]]:
    """The activities of each of the last `runs` runs, which lie between pairs of markers.

    Activities outside such pairs (flushes, copies for checks) are ignored, whatever their names.
    Markers of earlier runs may be missing, because profilers lose the first records of a session.
    Raises CuptiFailed when there are too few markers or no activity between two of them.
    """
    ordered = sorted(activities, key=lambda activity: (activity.start_ns, activity.end_ns))
    marks = [place for place, activity in enumerate(ordered) if MARKER in activity.name]
    if len(marks) < 2 * runs:
        raise CuptiFailed(f"{len(marks)} of {2 * runs} markers of {runs} runs were recorded")
    marks = marks[len(marks) - 2 * runs :]
    activities_of_runs = [ordered[a + 1 : b] for a, b in zip(marks[::2], marks[1::2], strict=True)]
    if not all(activities_of_runs):
        empty = sum(not run for run in activities_of_runs)
        raise CuptiFailed(f"no activity was recorded for {empty} of {runs} runs")
    return activities_of_runs


class CuptiTimer(GpuTimer):
    """Time from the start of a run's first activity on the device to the end of its last.

    One profiler session per `_CHUNK` runs. All runs of a candidate must have the same sequence of
    activities. Raises CuptiFailed.
    """

    method = "cupti"

    _CHUNK = 200
    #: Marker pairs at the start of a session, whose first records may be lost.
    _LEADING_PAIRS = 2

    _marker: torch.Tensor | None = None

    def collect(
        self, candidates: Sequence[Candidate], orders: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        slots = self._plan(candidates, orders)
        times_us: list[float] = []
        seen: dict[int, list[str]] = {}
        for chunk in chunks(slots, self._CHUNK):
            runs = self._runs(candidates, chunk)
            for slot, run in zip(chunk, runs, strict=True):
                names = [activity.name for activity in run]
                if seen.setdefault(slot.candidate, names) != names:
                    raise CuptiFailed(
                        f"the runs of `{candidates[slot.candidate].name}` differ: first "
                        f"{_format_names(seen[slot.candidate])}, later {_format_names(names)}"
                    )
                span_ns = max(activity.end_ns for activity in run) - run[0].start_ns
                times_us.append(self._correct(span_ns / 1000))
        self._warm_up.mark_busy()
        return by_candidate(len(candidates), slots, times_us)

    def _runs(self, candidates: Sequence[Candidate], chunk: Sequence[Slot]) -> list[list[Activity]]:
        """The activities of a chunk's runs. Runs the chunk again if records were lost."""
        try:
            return runs_of(self._profile(candidates, chunk, pass_on=True), len(chunk))
        except CuptiFailed:
            return runs_of(self._profile(candidates, chunk, pass_on=False), len(chunk))

    def _profile(
        self, candidates: Sequence[Candidate], chunk: Sequence[Slot], *, pass_on: bool
    ) -> list[Activity]:
        """Run a chunk under the profiler; `pass_on` its checked runs to their candidates."""
        import torch
        from torch.autograd.profiler import profile

        self._mark()
        torch.cuda.synchronize()
        session = profile(use_cpu=False, use_device="cuda", use_kineto=True)
        with session, no_garbage_collection():
            for _ in range(2 * self._LEADING_PAIRS):
                self._mark()
            spin(len(chunk) * 60 if self._flush is None else 240)
            for slot in chunk:
                candidate = candidates[slot.candidate]
                candidate.enter()
                if slot.checked and pass_on:
                    candidate.before_checked_run()
                self._flush_cache()
                self._mark()
                result = slot.run()
                self._mark()
                if slot.checked and pass_on:
                    candidate.after_checked_run(result)
                del result
            torch.cuda.synchronize()
        return list_activities(session)

    def _mark(self) -> None:
        import torch

        if self._marker is None:
            self._marker = torch.zeros(1, device="cuda")
        torch.nextafter(self._marker, self._marker, out=self._marker)


def list_activities(session: torch.autograd.profiler.profile) -> list[Activity]:
    """The activities that a finished session recorded on the device."""
    from torch._C._autograd import DeviceType

    results = session.kineto_results
    if results is None:
        raise CuptiFailed("the profiler recorded nothing")
    return [
        Activity(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.events()
        if event.device_type() == DeviceType.CUDA and event.name() not in _WAITING
    ]


def _format_names(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:3])
    return f"{len(names)} activities ({shown}{', ...' if len(names) > 3 else ''})"
