"""What a variant does besides its outputs: time, threads, changes of the harness, reserved L2."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat
from operator import is_
from typing import Any, TypeAlias

# -- which functions of the clocks and the harness a variant has replaced --------------------------
# A variant runs inside the measuring process, so this is not a security boundary. It names what a
# careless or too clever variant does to its own measurement.
_OURS = ("workers.measure.", "tuner.base.statistics")
_TIME = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
_TORCH = ("sub", "stack", "empty", "Tensor")
_CUDA = ("Event", "CUDAGraph", "Stream", "synchronize", "current_stream", "stream", "graph")
_EVENT = ("elapsed_time", "record", "synchronize", "query", "wait")
_TENSOR = ("copy_", "fill_", "to", "tolist", "any", "view")
_ABSENT = object()


class HarnessSnapshot:
    """The functions of the clocks and the harness at the time the snapshot is made.

    It covers the clocks of `time`, torch's events, graphs and synchronisation, the tensor
    operations that comparisons use, and everything callable in the loaded modules of
    `workers.measure`. Make it before the first kernel's module is loaded.
    """

    def __init__(self) -> None:
        # Several hundred names are compared many times for every variant, so lookups are prepared.
        parts: dict[int, tuple[Any, Callable[..., Any], list[str], list[Any]]] = {}
        for owner, name in _covered_names():
            look_up = vars(owner).get
            _, _, names, originals = parts.setdefault(id(owner), (owner, look_up, [], []))
            names.append(name)
            originals.append(look_up(name, _ABSENT))
        self._parts = list(parts.values())

    def restore(self) -> str:
        """Restore all replaced functions; the name of the first, such as
        `torch.cuda.Event.elapsed_time`, or empty where none was replaced."""
        if all(
            all(map(is_, map(look_up, names, repeat(_ABSENT)), originals))
            for _, look_up, names, originals in self._parts
        ):
            return ""
        first = ""
        for owner, look_up, names, originals in self._parts:
            for name, original in zip(names, originals, strict=True):
                if look_up(name, _ABSENT) is not original:
                    first = first or f"{_title(owner)}.{name}"
                    _restore(owner, name, original)
        return first


def _covered_names() -> list[tuple[Any, str]]:
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


# -- what a variant does besides its outputs -------------------------------------------------------
#: The value that a run returned, and a function for its time in us.
TimedRun: TypeAlias = tuple[Any, Callable[[], float]]
_LIMIT = 0x06  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


class RunObserver:
    """Observes the gate's runs on a CPU; a subclass does so on a GPU.

    A backend makes one when it starts and keeps it.
    """

    #: Whether other programs may use the device at the same time.
    device_is_shared = True

    def __init__(self) -> None:
        self._snapshot = HarnessSnapshot()
        #: A change of the harness that no variant is known to have made; it voids the job's times.
        self.unattributed_change = ""

    def begin_job(self) -> None:
        self._restore()
        self.unattributed_change = ""

    def harness_change(self, *, attributed: bool = False) -> str:
        """What was changed in the harness since the last look, or empty. Restores it.

        attributed: the caller refuses the variant that made the change. Otherwise the change is
        kept in `unattributed_change`.
        """
        change = self._restore()
        if not attributed:
            self.unattributed_change = self.unattributed_change or change
        return change

    def _restore(self) -> str:
        replaced = self._snapshot.restore()
        return f"changed {replaced}" if replaced else ""

    def threads(self) -> frozenset[int]:
        """The threads that run Python code."""
        return frozenset(sys._current_frames())

    def delay(self, us: float) -> None:
        """Delay the device by `us`, so that the host can queue work that then runs without gaps."""

    def delay_elapsed(self) -> bool:
        """Whether the device has begun the last timed run, so that the delay was too short."""
        return False

    def timed_run(self, run: Callable[[], Any]) -> TimedRun:
        """Run once. The time is known after `synchronize`."""
        start = time.perf_counter_ns()
        returned = run()
        took_us = (time.perf_counter_ns() - start) / 1000
        return returned, lambda: took_us

    def synchronize(self) -> None:
        """Wait until the whole device is idle, including work on other streams."""


class CudaRunObserver(RunObserver):
    """Observes runs on an NVIDIA GPU by events on the current stream; also watches reserved L2."""

    _CYCLES_PER_US = 2000

    device_is_shared = False

    def __init__(self) -> None:
        import torch

        super().__init__()
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The L2 limit belongs to a context, which torch creates when it is first needed.
        torch.cuda.synchronize()
        self._cache = PersistingCache()

    def begin_job(self) -> None:
        super().begin_job()
        self._cache.reset()

    def _restore(self) -> str:
        change = super()._restore()
        reserved = self._cache.restore()
        return change or (f"reserved {reserved} bytes of L2 for itself" if reserved else "")

    def delay(self, us: float) -> None:
        import torch

        torch.cuda._sleep(int(us * self._CYCLES_PER_US))  # type: ignore[no-untyped-call]

    def delay_elapsed(self) -> bool:
        return bool(self._start.query())  # type: ignore[no-untyped-call]

    def timed_run(self, run: Callable[[], Any]) -> TimedRun:
        self._start.record()
        returned = run()
        self._stop.record()
        return returned, lambda: 1000 * float(self._start.elapsed_time(self._stop))

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class PersistingCache:
    """The reservation of the current context, which the constructor releases.

    A new context reserves some L2 (11.25 MiB on an H200), which a variant could use unnoticed. Does
    nothing without NVIDIA's driver or with a driver that has no such limit.
    """

    def __init__(self) -> None:
        self._driver = _driver()
        if self._driver is not None:
            self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(0))
        self._bytes = self._limit()

    def restore(self) -> int:
        """Release what was reserved since the start; its size in bytes, 0 for nothing."""
        reserved = self._limit()
        if self._driver is None or reserved == self._bytes:
            return 0
        self._driver.cuCtxSetLimit(_LIMIT, ctypes.c_size_t(self._bytes))
        return reserved

    def reset(self) -> None:
        """Turn persisting cache lines into normal ones."""
        if self._driver is not None:
            self._driver.cuCtxResetPersistingL2Cache()

    def _limit(self) -> int:
        limit = ctypes.c_size_t(0)
        if self._driver is None or self._driver.cuCtxGetLimit(ctypes.byref(limit), _LIMIT):
            return 0
        return limit.value


def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuCtxGetLimit, driver.cuCtxSetLimit, driver.cuCtxResetPersistingL2Cache  # noqa: B018
    except (OSError, AttributeError):
        return None
    return driver
