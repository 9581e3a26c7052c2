"""The harness against what it runs: its clocks and functions, threads, streams, reserved caches.

A variant runs inside the measuring process, so none of this is a security boundary; it names what a
careless or too clever variant does to its own measurement.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any, TypeAlias

from workers.measure.gate.persisting_l2 import PersistingCache

#: what a run returned, and a function for the time it took in us
Lap: TypeAlias = tuple[Any, Callable[[], float]]

_OURS = "workers.measure."
_TIME = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
_TORCH = ("sub", "stack", "empty", "Tensor")
_CUDA = ("Event", "CUDAGraph", "Stream", "synchronize", "current_stream", "stream", "graph")
_EVENT = ("elapsed_time", "record", "synchronize", "query", "wait")
_TENSOR = ("copy_", "fill_", "to", "tolist", "any", "view")
_ABSENT = object()


class Seal:
    """What the clocks' and the harness's functions were when the seal was made.

    Sealed are the clocks of `time`, torch's events, graphs and synchronisation, the tensor
    operations that comparisons rest on, and whatever can be called in the modules of
    `workers.measure` that are loaded: so make it before the first kernel's module is.
    """

    def __init__(self) -> None:
        # Several hundred names are looked at many times for every variant: as few steps as can be.
        parts: dict[int, tuple[Any, Callable[..., Any], list[str], list[Any]]] = {}
        for owner, name in _sealed_names():
            look = vars(owner).get
            _, _, names, originals = parts.setdefault(id(owner), (owner, look, [], []))
            names.append(name)
            originals.append(look(name, _ABSENT))
        self._parts = list(parts.values())

    def broken(self) -> str:
        """The first function that is another one now, as `torch.cuda.Event.elapsed_time`; empty
        when none is. All are put back."""
        if all(
            all(map(is_, map(look, names, repeat(_ABSENT)), originals))
            for _, look, names, originals in self._parts
        ):
            return ""
        found = ""
        for owner, look, names, originals in self._parts:
            for name, original in zip(names, originals, strict=True):
                if look(name, _ABSENT) is not original:
                    found = found or f"{_title(owner)}.{name}"
                    _restore(owner, name, original)
        return found


class Watch:
    """What the gate asks of a device kind beside tensors; this one is for a CPU.

    One lives as long as its backend. spoiled: what of the harness was changed during the job by
    nobody knows whom; no time taken in it means anything. noisy: other programs share the device.
    """

    noisy = True

    def __init__(self) -> None:
        self._seal = Seal()
        self.spoiled = ""

    def begin(self) -> None:
        """A new job begins."""
        self._change()
        self.spoiled = ""

    def tampered(self, *, known_culprit: bool = False) -> str:
        """What of the harness is not as it was; empty when all is. Puts it back.

        known_culprit: whoever asks will answer for it, else it spoils the job.
        """
        change = self._change()
        if not known_culprit:
            self.spoiled = self.spoiled or change
        return change

    def _change(self) -> str:
        changed = self._seal.broken()
        return f"changed {changed}" if changed else ""

    def threads(self) -> frozenset[int]:
        """The threads that run Python code."""
        return frozenset(sys._current_frames())

    def lead(self, us: float) -> None:
        """Let the host get ahead by so much, so that what it enqueues next runs without gaps."""

    def overtaken(self) -> bool:
        """Whether the device has begun the last lap already, so that the host's lead is lost."""
        return False

    def lap(self, run: Callable[[], Any]) -> Lap:
        """What a run returned, and a function for the time it took in us, to be called after
        `wait`."""
        start = time.perf_counter_ns()
        returned = run()
        took_us = (time.perf_counter_ns() - start) / 1000
        return returned, lambda: took_us

    def wait(self) -> None:
        """Until the whole device is idle, whatever stream the work is on."""


class CudaWatch(Watch):
    """The same for a GPU: times by events on the current stream, and the cache's reservation."""

    _CYCLES_PER_US = 2000

    noisy = False

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The limit is that of a context, which torch makes when it is first needed.
        torch.cuda.synchronize()
        self._cache = PersistingCache()

    def begin(self) -> None:
        super().begin()
        self._cache.reset()

    def _change(self) -> str:
        """Also a part of the L2 cache that was reserved for data that is to stay in it."""
        changed = super()._change()
        reserved = self._cache.restore()
        return changed or (f"reserved {reserved} bytes of L2 for itself" if reserved else "")

    def lead(self, us: float) -> None:
        import torch

        torch.cuda._sleep(int(us * self._CYCLES_PER_US))  # type: ignore[no-untyped-call]

    def overtaken(self) -> bool:
        return bool(self._start.query())  # type: ignore[no-untyped-call]

    def lap(self, run: Callable[[], Any]) -> Lap:
        self._start.record()
        returned = run()
        self._stop.record()
        return returned, lambda: 1000 * float(self._start.elapsed_time(self._stop))

    def wait(self) -> None:
        import torch

        torch.cuda.synchronize()


def _sealed_names() -> list[tuple[Any, str]]:
    import torch

    names: list[tuple[Any, str]] = [(time, name) for name in _TIME]
    names += [(torch, name) for name in _TORCH] + [(torch.Tensor, name) for name in _TENSOR]
    names += [(torch.cuda, name) for name in _CUDA]
    names += [(torch.cuda.Event, name) for name in _EVENT]
    names += [(torch.cuda.CUDAGraph, "replay"), (torch.linalg, "vector_norm")]
    names += [(threading, "Thread"), (sys, "_current_frames")]
    for title, module in list(sys.modules.items()):
        if not title.startswith(_OURS):
            continue
        for name, value in vars(module).items():
            if callable(value) or value is time:
                names.append((module, name))
            if isinstance(value, type) and value.__module__ == title:
                names += [(value, each) for each, item in vars(value).items() if callable(item)]
    return names


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def _title(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(owner.__name__)
