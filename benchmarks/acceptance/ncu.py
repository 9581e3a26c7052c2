"""`ncu` (ncu-agreement): kernels of known work, timed by the farm and by Nsight Compute.

Nsight Compute runs in its own process. It fixes no clock and flushes no cache; the launches flush
the cache themselves.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from acceptance.harness import Harness, Setup
from acceptance.result import Result
from workers.measure.timers.timer import Candidate

_LAUNCHES, _SETTLING = 14, 4
_LIMIT_S = 75.0
_UNITS_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
_TARGETS_US = {"counting 50 us": 50.0, "scaling 60 us": 60.0, "scaling 300 us": 300.0}
_METRIC = "gpu__time_duration.sum"


def agreement(setup: Setup) -> Result:
    """Compare the farm's time of three kernels with that of ncu."""
    result = Result()
    what = "agreement with ncu --clock-control none --cache-control none"
    if shutil.which("ncu") is None:
        result.skip(what, "ncu is not installed on this machine")
        return result
    from acceptance.planted import fit_work

    harness, by_farm = Harness(setup), {}
    for name, kernel in _kernels().items():
        work = fit_work(harness, kernel, ())[0.0]
        candidate = Candidate(name, kernel.runner(work))
        timer = harness.chosen_timer([candidate])
        timer.warm(candidate, 50.0)
        by_farm[name] = work, harness.median_us(timer, candidate, 40)
    durations_us, problem = by_ncu([work for work, _ in by_farm.values()])
    result.data["ncu"] = {
        "farm_us": {n: us for n, (_, us) in by_farm.items()},
        "ncu_us": durations_us,
    }
    if problem:
        result.skip(what, problem)
        return result
    off = {n: us / statistics.median(durations_us[n]) - 1 for n, (_, us) in by_farm.items()}
    worst = max(off, key=lambda name: abs(off[name]))
    each = ", ".join(f"{name} {100 * share:+.1f} %" for name, share in off.items())
    result.add(
        what, "within 5 %", f"worst {100 * off[worst]:+.1f} %", abs(off[worst]) <= 0.05, each
    )
    return result


def durations(text: str) -> list[tuple[str, float]]:
    """Kernel names and durations in us from ncu's CSV, in order; lines that are not CSV are
    ignored.
    """
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith('"ID"')]
    if not heads:
        return []
    rows = csv.DictReader(io.StringIO("\n".join(lines[heads[0] :])))
    return [
        (row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * _UNITS_US[unit])
        for row in rows
        if row.get("Metric Name") == _METRIC and (unit := row["Metric Unit"]) in _UNITS_US
    ]


def _kernels():
    from acceptance.planted import Counting, Scaling

    kinds = {"counting": Counting, "scaling": Scaling}
    return {name: kinds[name.split()[0]](name, us) for name, us in _TARGETS_US.items()}


def by_ncu(works: list[int]) -> tuple[dict[str, list[float]], str]:
    """Durations in us by kernel, and the reason where there are none."""
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv",
               "--metrics", _METRIC, "--kernel-name", "regex:counting_kernel|scaling_kernel",
               sys.executable, "-m", "acceptance.ncu", *map(str, works)]  # fmt: skip
    home = Path(__file__).resolve().parents[1]
    paths = f"{home}{os.pathsep}{home.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:
        return {}, f"ncu did not finish within {_LIMIT_S:g} s"
    durations_us = [us for _, us in durations(done.stdout)]
    if len(durations_us) != len(works) * _LAUNCHES:
        printed = f"{done.stdout}\n{done.stderr}".strip().splitlines()
        reason = ([line for line in printed if "==ERROR==" in line] or printed[-1:] or [""])[0]
        return {}, f"ncu recorded {len(durations_us)} launches: {reason[:160]}"
    each = {}
    for at, name in enumerate(_TARGETS_US):
        each[name] = durations_us[at * _LAUNCHES + _SETTLING : (at + 1) * _LAUNCHES]
    return each, ""


def main(works: list[int]) -> None:
    """Launch every kernel a few times, each launch after a flush; runs under ncu."""
    import torch

    size = torch.cuda.get_device_properties().L2_cache_size
    flush = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
    for kernel, work in zip(_kernels().values(), works, strict=True):
        run = kernel.runner(work)
        for _ in range(_LAUNCHES):
            for _ in range(20):
                flush.zero_()
            run()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
