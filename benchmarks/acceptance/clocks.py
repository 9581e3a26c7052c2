"""G1 (clock-calibration), G7 (cache-states), G8 (launch-times): readings of the farm's clocks."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np

from acceptance.harness import Harness, Setup
from acceptance.result import Result, percent
from workers.measure.race.samples import rotated_orders
from workers.measure.timers.timer import Candidate

_WAITS_US = (2, 5, 10, 20, 50, 200)
#: Bytes read plus written by a copy in the memory of an H200, in bytes per us.
_H200_COPY = 4.3e6


def calibrated(setup: Setup) -> Result:
    """G1: calibrations agree with each other; readings are linear in the true time and agree with
    CUPTI.
    """
    from acceptance.planted import waiting

    harness, result = Harness(setup), Result()
    quantum_us = harness.calibration.quantum_us
    field = [waiting(us) for us in _WAITS_US]
    for candidate in field:
        candidate.run()
    readings = _ladder(harness, field, setup.times(160, 24))
    # Calibrations come from other processes: after a profiler session, events read longer times.
    calibrations = [harness.calibration, *setup.calibrations]
    _reproducible(result, calibrations)
    result.data["calibrations"] = [
        {"quantum_us": c.quantum_us, "flush_us": c.flush_us, "overhead_us": dict(c.overhead_us)}
        for c in calibrations
    ]
    result.data["waits_us"] = {m: dict(zip(_WAITS_US, v, strict=True)) for m, v in readings.items()}
    for method in ("graph", "events"):
        slope, residual = _line(_WAITS_US, readings[method])
        result.add(
            f"{method}: slope over kernels that wait 2 .. 200 us by the device's clock",
            "1.00 +- 1 %",
            f"{slope:.4f}",
            abs(slope - 1) <= 0.01,
            f"CUPTI's slope {_line(_WAITS_US, readings['cupti'])[0]:.4f}",
        )
        bound = max(quantum_us, 0.3)
        result.add(
            f"{method}: residual", f"<= {bound:g} us", f"{residual:.3f} us", residual <= bound
        )
        apart = max(abs(a - b) for a, b in zip(readings[method], readings["cupti"], strict=True))
        result.add(
            f"{method} against CUPTI, worst of all waits",
            f"<= {bound:g} us",
            f"{apart:.3f} us",
            apart <= bound,
        )
    return result


def _reproducible(result: Result, calibrations) -> None:
    rows = {
        "quantum": [c.quantum_us for c in calibrations],
        "flush": [c.flush_us for c in calibrations],
        **{
            f"overhead of {method}": [c.overhead_us.get(method, 0.0) for c in calibrations]
            for method in ("events", "graph")
        },
    }
    for name, values in rows.items():
        middle = statistics.median(values)
        off = max(abs(value / middle - 1) for value in values) if middle > 0 else float("inf")
        result.add(
            f"{len(values)} calibrations: {name}",
            "> 0, within 10 %",
            ", ".join(f"{value:.3f}" for value in values) + " us",
            min(values) > 0 and off <= 0.10,
        )


def _ladder(harness: Harness, field, passes: int) -> dict[str, list[float]]:
    """Mean readings of each method over eight parts.

    The profiler reads last. Frequency drift in between does no harm: these kernels wait by the
    device's timer.
    """
    parts = 8
    each = max(2, passes // parts)
    read = {}
    for method in ("graph", "events", "cupti"):
        timer, read[method] = harness.timer(method), [[] for _ in field]
        for part in range(parts):
            rows = timer.collect(field, rotated_orders(len(field), each, part * each))
            for kept, row in zip(read[method], rows, strict=True):
                kept.append(statistics.median(row))
    return {method: [statistics.fmean(row) for row in rows] for method, rows in read.items()}


def _line(x, y) -> tuple[float, float]:
    """Slope and largest residual of the line through the points."""
    slope, intercept = np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)
    residuals = np.asarray(y, float) - (slope * np.asarray(x, float) + intercept)
    return float(slope), float(np.abs(residuals).max())


def caches(setup: Setup) -> Result:
    """G7: a copy that fits into the cache and one that does not, each cold, warm and rotating."""
    harness, result = Harness(setup), Result()
    torch = harness.torch
    passes = setup.times(60, 20)
    for name, size in (("8 MB", 8 * 10**6), ("1 GB", 10**9)):
        copies = 1 if size > 10**8 else 41
        made = [
            (torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda"), torch.empty(
                size, dtype=torch.uint8, device="cuda")) for _ in range(copies)
        ]  # fmt: skip
        runs = [partial(y.copy_, x) for x, y in made]
        copy = Candidate(f"copy of {name}", runs[0], rotations=tuple(runs))
        us = {}
        for cache in ("cold", "warm", "rotate"):
            timer = harness.chosen_timer([copy], cache)
            us[cache] = statistics.fmean(harness.median_us(timer, copy, passes) for _ in range(3))
        result.data[name] = us
        if copies > 1:
            _small_copy(result, us)
        else:
            apart = us["cold"] / us["warm"] - 1
            measured = f"{us['cold']:.1f} and {us['warm']:.1f} us ({100 * apart:+.1f} %)"
            result.add("copy of 1 GB: cold = warm", "+- 2 %", measured, abs(apart) <= 0.02)
            rate = 2 * size / us["cold"]
            result.add(
                "copy of 1 GB: bytes read plus written, against 4.3 TB/s measured on an H200",
                "+- 3 %",
                f"{rate / 1e6:.2f} TB/s",
                abs(rate / _H200_COPY - 1) <= 0.03,
                f"calibration: {harness.calibration.copy_bytes_per_us / 1e6:.2f} TB/s",
            )
        del made, runs, copy
        torch.cuda.empty_cache()
    return result


def _small_copy(result: Result, us) -> None:
    ratio, apart = us["cold"] / us["warm"], us["rotate"] / us["cold"] - 1
    measured = f"{us['cold']:.2f} / {us['warm']:.2f} us = {ratio:.2f}"
    result.add("copy of 8 MB: cold / warm", ">= 1.5", measured, ratio >= 1.5)
    measured = f"{us['rotate']:.2f} us ({100 * apart:+.1f} %)"
    result.add("copy of 8 MB: rotating = flushed", "+- 3 %", measured, abs(apart) <= 0.03)


def launches(setup: Setup) -> Result:
    """G8: a busy wait on the host during a launch does not change the measured times."""
    from triton.testing import do_bench

    from acceptance.planted import Counting

    harness, result = Harness(setup), Result()
    kernel = Counting("3 us", 3.0)
    work = kernel.runner(250)

    def delayed(wait_us: int):
        def run() -> None:
            end = time.perf_counter_ns() + 1000 * wait_us
            while time.perf_counter_ns() < end:
                pass
            work()

        return run

    waits = (0, 50, 200)
    field = [Candidate(f"+{us} us", delayed(us)) for us in waits]
    for candidate in field:
        candidate.run()
    chosen = harness.chosen_timer(field)
    for method in ("graph", "events"):
        rows = harness.timer(method).collect(field, rotated_orders(3, setup.times(60, 18)))
        us = [statistics.median(row) for row in rows]
        off = max(abs(value / us[0] - 1) for value in us)
        is_chosen = method == chosen.method
        result.add(
            f"{method}: launch delayed by 0, 50, 200 us",
            "+- 3 %" if is_chosen else "",
            ", ".join(f"{value:.2f}" for value in us) + " us",
            off <= 0.03 if is_chosen else None,
            f"worst {percent(off)}; "
            + ("the farm's choice for this kernel" if is_chosen else "not used for this kernel"),
        )
        result.data[method] = us
    bench = [1000 * do_bench(c.run, warmup=5, rep=25, return_mode="median") for c in field]
    measured = ", ".join(f"{value:.2f}" for value in bench) + " us"
    result.add("triton's do_bench on the same", "", measured, None, "for comparison only")
    result.data["do_bench"] = bench
    return result
