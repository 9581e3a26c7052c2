"""Calibration of a device and its timers, measured before a worker's first job.

`kept_calibration` keeps those of GPUs between runs.

Notation: r[k] is a timer's reading of spin kernel k and t[k] the device's own record of it (CUPTI),
both in us.

- Quantum: the largest step of which the raw readings are multiples.
- Overhead: the median of r - t. It is accepted if r is linear in t with slope 1 and the overhead as
  intercept, so that it does not depend on the kernel's length (test G1 of
  docs/measurement_evidence.md).
- Flush time, copy bandwidth and matrix peaks: the best of a few runs.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from workers.job_records import Calibration
from workers.measure.timers.events import EventTimer
from workers.measure.timers.kept_calibration import SpotCheck
from workers.measure.timers.methods import METHODS, gpu_timer, overhead_key
from workers.measure.timers.perf_counter import PerfCounterTimer
from workers.measure.timers.timer import Candidate, Timer, WarmUp

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)

_SPIN_CYCLES = (4_000, 10_000, 20_000, 40_000)
#: Readings shift by several quanta from one `collect` to the next, so each spin is collected often.
_SPIN_COLLECTS = 8
#: The device's own records do not shift, and each `collect` of them takes a profiler session.
_CUPTI_COLLECTS = 2
_READINGS = 1024
_WARM_MS = 50.0
#: Largest accepted deviation of the intercept from the overhead, in us, and of the slope from 1.
_AGREE_US = 0.5
_AGREE_SLOPE = 0.02
_COPY_BYTES = 256 * 2**20
_REPEATS = 10
_PRODUCTS = 5
_GPU_SIDES = {"bfloat16": 8192, "float16": 8192, "tf32": 8192, "float32": 4096}
_SPOT_WARM_MS = 20.0
_SPOT_READINGS = 32
_SPOT_COPIES = 5
_CPU_COPY_BYTES = 48 * 2**20
_CPU_SIDE = 512


def step_us(readings_us: Sequence[float]) -> float:
    """The quantum of a clock: the largest step of which 99 % of its readings are multiples.

    Readings may be off by 1.5 ns, because events are read as milliseconds in float32. 0.0 when the
    readings have no step of at least 8 ns.
    """
    values = np.unique(np.round(np.asarray(readings_us, dtype=float) * 1000))
    all_ns = np.asarray(readings_us, dtype=float) * 1000
    if len(values) < 3:
        return 0.0
    gaps = np.unique(np.diff(values))
    gaps = gaps[gaps > 3]
    candidates = sorted({float(gap) / parts for gap in gaps[:64] for parts in (1, 2, 3)})
    for candidate in reversed(candidates):
        if candidate < 8:
            break
        ticks = np.round(all_ns / candidate)
        # A small error of the step adds up over many ticks, so the step is fitted first.
        step = float(ticks @ all_ns / (ticks @ ticks)) if ticks.any() else candidate
        off = np.abs(all_ns - step * np.round(all_ns / step))
        if np.mean(off <= 1.5) >= 0.99:
            return round(step) / 1000 if abs(step - round(step)) < 0.05 else step / 1000
    return 0.0


def clock_overhead_us(readings_us: Sequence[float], own_us: Sequence[float]) -> float | None:
    """The overhead of a timer, from kernels of several lengths: the median of readings - own times.

    None when it depends on the length (a slope off 1 by more than 2 %), differs from the intercept
    by more than 0.5 us, or is negative.
    """
    if len(readings_us) < 2:
        return None
    readings, own = np.asarray(readings_us, dtype=float), np.asarray(own_us, dtype=float)
    slope, intercept = np.polyfit(own, readings, 1)
    overhead = float(np.median(readings - own))
    agreed = abs(slope - 1) <= _AGREE_SLOPE and abs(intercept - overhead) <= _AGREE_US
    return overhead if agreed and overhead >= 0 else None


def calibrate_gpu(flush: torch.Tensor | None) -> Calibration:
    """Calibrate the current GPU and its timers, in about a second and under 2 GB.

    flush: zeroed to empty the last-level cache; None measures with warm caches. Values that need
    more memory than there is, or a profiler that is missing, are 0 or omitted. The state of the
    random generators and all settings are preserved.
    """
    import torch

    warm_up = WarmUp()
    with torch.no_grad():
        EventTimer(flush, warm_up).warm(_spins()[0], _WARM_MS)
        quantum_us = step_us(_raw_readings(warm_up))
        overhead_us = _overheads(flush, warm_up)
        unflushed_us = overhead_us.get(overhead_key("events", "warm"), 0.0)
        events = EventTimer(None, warm_up, unflushed_us)
        flush_us = 0.0
        if flush is not None:
            flush_us = statistics.median(_times(events, flush.zero_))
        copied = _unless_out_of_memory(lambda: _copy_bytes_per_us(events)) or 0.0
        flops = {}
        for dtype, side in _GPU_SIDES.items():
            rate = _unless_out_of_memory(partial(_flops_per_us, events, dtype, side))
            if rate:
                flops[dtype] = rate
        torch.cuda.empty_cache()
    return Calibration(quantum_us, overhead_us, flush_us, copied, flops)


def spot_check_gpu() -> SpotCheck:
    """Two quick readings by which a kept calibration of the current GPU is checked; some 50 ms.

    The overhead is the intercept of the readings of `events` over the length of spin kernels, so
    that the clock of the device does not change it.
    """
    import torch

    warm_up = WarmUp()
    events = EventTimer(None, warm_up)
    with torch.no_grad():
        events.warm(_spins()[0], _SPOT_WARM_MS)
        spins = _spins()
        rows = events.collect(spins, [list(range(len(spins)))] * _SPOT_READINGS)
        medians_us = [statistics.median(samples) for samples in rows]
        _, overhead_us = np.polyfit(_SPIN_CYCLES, medians_us, 1)
        copied = _unless_out_of_memory(lambda: _copy_bytes_per_us(events, _SPOT_COPIES)) or 0.0
        torch.cuda.empty_cache()
    return SpotCheck(float(overhead_us), copied)


def calibrate_cpu() -> Calibration:
    """Calibrate the processor as this process may use it, in a fraction of a second."""
    import torch

    readings = [time.perf_counter_ns() for _ in range(_READINGS)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    timer = PerfCounterTimer(0.0, WarmUp())
    nothing = min(_times(timer, lambda: None, 100))
    source = torch.ones(_CPU_COPY_BYTES, dtype=torch.uint8)
    target = torch.zeros_like(source)
    copy_us = min(_times(timer, lambda: target.copy_(source), 2))
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_CPU_SIDE, _CPU_SIDE, generator=drawn) for _ in range(2))
    with torch.no_grad():
        product_us = min(_times(timer, lambda: a @ b, 8))
    return Calibration(
        quantum_us=math.gcd(*steps) / 1000 if steps else 0.0,
        overhead_us={"perf_counter": nothing},
        copy_bytes_per_us=2 * _CPU_COPY_BYTES / copy_us,
        flops_per_us={"float32": 2 * _CPU_SIDE**3 / product_us},
    )


def _times(timer: Timer, run: Callable[[], object], times: int = _REPEATS) -> list[float]:
    (samples,) = timer.collect([Candidate("calibration", run)], [[0]] * times)
    return samples


def _spin(cycles: int) -> Candidate:
    import torch

    return Candidate(f"spin {cycles}", lambda: torch.cuda._sleep(cycles))  # type: ignore[no-untyped-call]


def _spins() -> list[Candidate]:
    return [_spin(cycles) for cycles in _SPIN_CYCLES]


def _raw_readings(warm_up: WarmUp) -> list[float]:
    """Uncorrected readings of spin kernels of many lengths."""
    spins = [_spin(200 + 37 * position) for position in range(128)]
    timer = EventTimer(None, warm_up)
    rows = timer.collect(spins, [list(range(len(spins)))] * (_READINGS // len(spins)))
    return [reading for row in rows for reading in row]


def _overheads(flush: torch.Tensor | None, warm_up: WarmUp) -> Mapping[str, float]:
    """Overheads of `events` and `graph`, by `overhead_key`; those that are not accepted are
    missing."""
    caches = ("warm",) if flush is None else ("cold", "warm")
    # CUPTI last: after a profiler session events read 0.1 to 0.3 us more.
    clocks = {
        (method, cache): gpu_timer(method, flush, warm_up, Calibration(), cache)
        for method, cache in itertools.product(METHODS, caches)
    }
    read: dict[tuple[str, str], list[float]] = {}
    for (method, cache), timer in clocks.items():
        try:
            collects = _CUPTI_COLLECTS if method == "cupti" else _SPIN_COLLECTS
            read[method, cache] = _spin_means(timer, collects)
        except Exception as problem:
            _LOG.warning("cannot calibrate `%s`: %s", method, problem)
    overheads = {}
    for method, cache in itertools.product(("events", "graph"), caches):
        if (method, cache) in read and ("cupti", cache) in read:
            overhead_us = clock_overhead_us(read[method, cache], read["cupti", cache])
            if overhead_us is None:
                _LOG.warning("readings of `%s` do not agree with the device's records", method)
            else:
                overheads[overhead_key(method, cache)] = overhead_us
    return overheads


def _spin_means(timer: Timer, collects: int) -> list[float]:
    """The mean over several collects of each spin's median."""
    spins = _spins()
    order = list(range(len(spins)))
    orders = [order, order[::-1]] * 2
    rows = [timer.collect(spins, orders) for _ in range(collects)]
    return [
        statistics.fmean(statistics.median(samples[position]) for samples in rows)
        for position in order
    ]


def _unless_out_of_memory(measure: Callable[[], float]) -> float | None:
    import torch

    try:
        return measure()
    except torch.OutOfMemoryError as problem:
        _LOG.warning("not enough memory for a calibration: %s", str(problem).splitlines()[0])
        return None


def _copy_bytes_per_us(timer: Timer, times: int = _REPEATS) -> float:
    import torch

    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / min(_times(timer, lambda: target.copy_(source), times))


def _flops_per_us(timer: Timer, dtype: str, side: int) -> float:
    """The best rate of products of random square matrices, with and without a transposed factor."""
    import torch

    drawn = torch.Generator(device="cuda").manual_seed(0)
    kind = torch.float32 if dtype in ("tf32", "float32") else getattr(torch, dtype)
    a, b = (torch.randn(side, side, generator=drawn, device="cuda", dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    with _float32_products("tf32" if dtype == "tf32" else "ieee"):
        products = [partial(torch.mm, a, right, out=out) for right in (b, b.t())]
        for product in products:
            product()
        torch.cuda.synchronize()
        best_us = min(min(_times(timer, product, _PRODUCTS)) for product in products)
        return 2 * side**3 / best_us


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    import torch

    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before
