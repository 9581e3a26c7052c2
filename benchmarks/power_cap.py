#!/usr/bin/env python3
"""How times, and ratios of variants, move while a power limit takes a GPU's clock down.

    benchmarks/power_cap.py --space a --out DIR/power_cap.json

A few configs of a comparison's task (matmul_tasks.py) run in turns, the last-level cache flushed
before each launch, in blocks of 20 ms for some seconds: from an idle card, and from one that did
short jobs with pauses, as in a search. After every block the card's clock, power and throttle
reasons are noted. It says how long a kernel has to run before its ratios to others hold.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

from judge import Clock, build_all, median, orders
from matmul_tasks import TASKS, Problem, cold_cache, device_here, facts, write

BLOCK_S, PAUSE_S, GAP_S = 0.02, 3.0, 0.04
#: Of space `a`: what was chosen on a cool card, and what the judge found best; of `b`, any two.
CONFIGS = {
    "a": ((128, 256, 64, 8, 8, 3), (256, 128, 32, 1, 8, 5), (256, 128, 32, 8, 8, 5)),
    "b": ((16, 64, 256, 1, 4, 4), (16, 32, 256, 1, 4, 4)),
}
NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")


class Card:
    """What NVML says of the device in use, None for what it does not say."""

    def __init__(self) -> None:
        import pynvml
        import torch

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000

    def look(self) -> dict:
        nvml, handle = self._nvml, self._handle
        began = time.perf_counter()
        seen = {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_w": round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        plain_s = time.perf_counter() - began
        field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        instant_w = None if field.nvmlReturn else round(field.value.uiVal / 1000)
        took_ms = [round(1000 * s, 3) for s in (plain_s, time.perf_counter() - began - plain_s)]
        return {**seen, "instant_w": instant_w, "looked_ms": took_ms}


def follow(clock: Clock, runs, card: Card, seconds: float) -> list[dict]:
    """Blocks of all runs in turns until so many seconds are over: a row for each."""
    rows, each_us, began = [], 300.0, time.perf_counter()
    while (at_s := time.perf_counter() - began) < seconds:
        passes = max(2, round(1e6 * BLOCK_S / (each_us * len(runs))))
        flat = [index for order in orders(len(runs), passes, 2 * len(rows)) for index in order]
        taken = clock.times([runs[index] for index in flat])
        by_run: list[list[float]] = [[] for _ in runs]
        for index, value in zip(flat, taken, strict=True):
            by_run[index].append(value)
        each_us = sum(taken) / len(taken) + 45.0
        first = [math.log(value) for value in by_run[0]]
        ratios = [
            math.exp(median([math.log(v) - f for v, f in zip(values, first, strict=True)]))
            for values in by_run
        ]
        rows.append(
            {
                "s": round(at_s, 3),
                "us": [round(median(values), 2) for values in by_run],
                "ratio": [round(ratio, 4) for ratio in ratios],
                **card.look(),
            }
        )
    return rows


def short_jobs(clock: Clock, runs, seconds: float) -> None:
    """What a search does to the card: some launches, a pause, and again."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        clock.times([run for run in runs for _ in range(8)])
        time.sleep(GAP_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", choices=sorted(TASKS), default="a")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    task, device = TASKS[args.space], device_here()
    cache = Path(cold_cache())
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    configs = [dict(zip(NAMES, values, strict=True)) for values in CONFIGS[args.space]]
    problem = Problem(task, device)
    whole = [problem.whole(config) for config in configs]
    if failed := build_all(task, whole, device, cache, len(whole)):
        raise SystemExit(f"not built: {failed}")
    runs = [_runner(problem.launch(config)) for config in whole]
    for run in runs:
        run()
    card = Card()
    clock = Clock("events", "")
    clock.times(runs)
    found = {}
    for name in ("idle", "short jobs", "idle again", "short jobs again"):
        time.sleep(PAUSE_S)
        if name.startswith("short"):
            short_jobs(clock, runs, PAUSE_S)
        found[name] = follow(clock, runs, card, args.seconds)
        print(name)
        for row in found[name][:25] + found[name][25::10]:
            print({key: value for key, value in row.items() if key != "looked_ms"}, flush=True)
    document = {"space": args.space, "configs": configs, "limit_w": card.limit_w, "from": found}
    write(args.out, {**document, "facts": facts()})


def _runner(launch):
    run, arguments, constants = launch.fn[launch.grid], launch.args, launch.kwargs
    return lambda: run(*arguments, **constants)


if __name__ == "__main__":
    main()
