#!/usr/bin/env python3
"""Times and ratios of variants while a power limit lowers a GPU's clock.

    benchmarks/power_cap.py --out DIR/power_cap.json

A few configs of each task (matmul_tasks.py) run in turns in blocks of 20 ms for several seconds;
each launch follows a flush of the last-level cache. The card starts idle, or after short jobs with
pauses as in a search. After every block the script records the card's clock, power and throttle
reasons. The result shows how long the clock stays high, and the window over which ratios must be
averaged before they are stable.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from matmul_tasks import TASKS, Problem, cold_cache, device_here, facts, write
from reference_timing import Clock, build_all, orders, runner

from tuner.campaign.run_facts import read_revision

BLOCK_S, PAUSE_S, GAP_S = 0.02, 3.0, 0.04
FELL, HEATED_S, WINDOWS_S = 1.025, 0.25, (0.05, 0.1, 0.2, 0.4)
#: Space `a`: the choice on a cool card, and the best by the reference timing. Space `b`: any two.
CONFIGS = {
    "a": ((128, 256, 64, 8, 8, 3), (256, 128, 32, 1, 8, 5), (256, 128, 32, 8, 8, 5)),
    "b": ((16, 64, 256, 1, 4, 4), (16, 32, 256, 1, 4, 4)),
}
NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")


class Card:
    """NVML's readings of the device in use; None for a value that NVML does not provide."""

    def __init__(self) -> None:
        import pynvml
        import torch

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000

    def look(self) -> dict:
        nvml, handle = self._nvml, self._handle
        field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_w": round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "instant_w": None if field.nvmlReturn else round(field.value.uiVal / 1000),
            "reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }


def follow(clock: Clock, runs, card: Card, seconds: float) -> list[dict]:
    """Time blocks of all runs in turns for a number of seconds; one row per block."""
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
    """The load of a search on the card: some launches, a pause, and again."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        clock.times([run for run in runs for _ in range(8)])
        time.sleep(GAP_S)


def windows(rows: list[dict], seconds: float, place: int) -> list[float]:
    """The smallest and largest mean ratio of one config over windows of that length.

    The first quarter of a second of load is excluded.
    """
    by_window: dict[int, list[float]] = {}
    for row in rows:
        if row["s"] >= HEATED_S:
            window = int((row["s"] - HEATED_S) / seconds)
            by_window.setdefault(window, []).append(row["ratio"][place])
    means = [sum(ratios) / len(ratios) for ratios in by_window.values()]
    return [round(min(means), 4), round(max(means), 4)]


def summary(rows: list[dict]) -> dict:
    """Summary of a history: time until the clock fell, range of times, and ratios in windows."""
    full_us = FELL * rows[0]["us"][0]
    fell = next((row["s"] for row in rows if row["us"][0] >= full_us), None)
    later = [row["us"][0] for row in rows if row["s"] >= HEATED_S]
    return {
        "full_clock_until_s": fell,
        "first_us": [min(later), max(later)],
        "ratios_over": {
            f"{seconds} s": [windows(rows, seconds, place) for place in range(len(rows[0]["us"]))]
            for seconds in WINDOWS_S
        },
    }


def follow_task(name: str, seconds: float, card: Card) -> dict:
    task, device = TASKS[name], device_here()
    configs = [dict(zip(NAMES, values, strict=True)) for values in CONFIGS[name]]
    problem = Problem(task, device)
    full_configs = [problem.full_config(config) for config in configs]
    cache = Path(cold_cache())
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    if failed := build_all(task, full_configs, device, cache, len(full_configs)):
        raise SystemExit(f"not built: {failed}")
    runs = [runner(problem.launch(config)) for config in full_configs]
    clock = Clock("events", ())
    clock.times(runs)
    histories = {}
    for history in ("idle", "short jobs", "idle again", "short jobs again"):
        time.sleep(PAUSE_S)
        if history.startswith("short"):
            short_jobs(clock, runs, PAUSE_S)
        rows = follow(clock, runs, card, seconds)
        histories[history] = {"told": summary(rows), "rows": rows}
        print(name, history, histories[history]["told"], flush=True)
    return {"configs": configs, "from": histories}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    card = Card()
    document = {
        "script": "benchmarks/power_cap.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "revision": read_revision(Path(__file__).parent),
        "limit_w": card.limit_w,
        "spaces": {name: follow_task(name, args.seconds, card) for name in args.space},
        "facts": facts(),
    }
    write(args.out, document)


if __name__ == "__main__":
    main()
