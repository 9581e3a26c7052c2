#!/usr/bin/env python3
"""One long interleaved comparison of every tuner's choice and of the best configs.

    benchmarks/reference_timing.py --space a --choices choices.json --out reference.json

choices.json: {label: config}. All configs of the task are built on the CPU (`--build choices`: only
the choices) and then raced; every pass times all remaining configs. Configs that are clearly slower
than the best are dropped after 3, 12 and 40 passes; the choices are never dropped. The remaining
configs are compared over at least 300 passes in rotated and reversed orders, on the same inputs,
with a flush of the last-level cache before each launch. Times are CUPTI's records of each kernel
(`--clock events`: pairs of CUDA events).

A regret is the median over passes of time / time of the best, minus one, with the 95 % interval
from order statistics. The script shares the kernels with the workers' measurement, and nothing
else.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

from matmul_tasks import (
    KERNEL,
    OTHERS,
    TASKS,
    Problem,
    cold_cache,
    configs_of,
    device_here,
    facts,
    tuned,
    write,
)

from search_spaces.records import config_key

ALL_TASKS = {**TASKS, **OTHERS}
#: Passes of a stage, and the largest ratio to the best with which a config stays.
STAGES = ((3, 1.25), (12, 1.08), (40, 1.03))
FIELD = 12
SESSION_LAUNCHES = 1500
SETTLING_PASSES = 2


# -- building --------------------------------------------------------------------------------------
def build_all(task, configs, device, cache: Path, processes: int) -> dict:
    """Compile configs in other processes into `cache`; returns key -> message of failures."""
    context = multiprocessing.get_context("spawn")
    jobs = [(task.name, dict(config), device, str(cache)) for config in configs]
    hidden, before = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ[hidden] = ""
    try:
        with ProcessPoolExecutor(processes, context) as pool:
            problems = list(pool.map(_build, jobs))
    finally:
        if before is None:
            del os.environ[hidden]
        else:
            os.environ[hidden] = before
    return {
        config_key(c): text for c, text in zip(configs, problems, strict=True) if text is not None
    }


def _build(job):
    from workers.compiling import build
    from workers.job_records import BuildJob, Failure, KernelRef

    name, config, device, cache = job
    task = ALL_TASKS[name]
    order = BuildJob("reference", KernelRef(task.kernel), task.workload, config, device)
    result = build(order, Path(cache))
    return result.message if isinstance(result, Failure) else None


# -- timing ----------------------------------------------------------------------------------------
def orders(count: int, passes: int, first: int = 0):
    """Rotated orders, then their reverses: each run has each place and each neighbour equally
    often.
    """
    for number in range(first, first + passes):
        shift = number // 2 % count
        order = [(shift + step) % count for step in range(count)]
        yield order if number % 2 == 0 else order[::-1]


class LostRecords(Exception):
    """The profiler did not record every launch, so records cannot be assigned to runs."""


class Clock:
    """Times runs in a given order, each behind a flush of twice the last-level cache."""

    def __init__(self, name: str, kernels: Collection[str]):
        import torch

        self.name, self.kernels, self.torch = name, frozenset(kernels), torch
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")

    def warm(self, run, seconds: float):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(20):
                self.flush.zero_()
                run()
            self.torch.cuda.synchronize()

    def times(self, runs) -> list[float]:
        """Microseconds of each run, in order. Raises `LostRecords` where CUPTI dropped some."""
        return self._cupti(runs) if self.name == "cupti" else self._events(runs)

    def _enqueue(self, runs, before=None, after=None):
        # The queue stays ahead of the device, so that no launch waits for the host.
        self.torch.cuda._sleep(4_000_000)
        for slot, run in enumerate(runs):
            self.flush.zero_()
            if before:
                before[slot].record()
            run()
            if after:
                after[slot].record()
        self.torch.cuda.synchronize()

    def _events(self, runs):
        make = self.torch.cuda.Event
        before, after = ([make(enable_timing=True) for _ in runs] for _ in range(2))
        self._enqueue(runs, before, after)
        return [1000 * a.elapsed_time(b) for a, b in zip(before, after, strict=True)]

    def _cupti(self, runs):
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with profile(activities=[ProfilerActivity.CUDA]) as recorded:
                self._enqueue(runs)
        records = sorted(
            (event.start_ns(), event.duration_ns())
            for event in recorded.profiler.kineto_results.events()
            if event.device_type() == DeviceType.CUDA and event.name() in self.kernels
        )
        if len(records) != len(runs):
            raise LostRecords(f"CUPTI recorded {len(records)} of {len(runs)} launches")
        return [duration / 1000 for _, duration in records]


def collect(clock: Clock, runs, passes: int) -> list[list[float]]:
    """Samples per run over interleaved passes; the first passes of every session settle it."""
    samples: list[list[float]] = [[] for _ in runs]
    session = max(4, SESSION_LAUNCHES // len(runs))
    done = 0
    while done < passes:
        count = min(session, passes - done)
        sequence = list(orders(len(runs), SETTLING_PASSES, done))
        sequence += list(orders(len(runs), count, done))
        flat = [index for order in sequence for index in order]
        taken = clock.times([runs[index] for index in flat])
        skipped = SETTLING_PASSES * len(runs)
        for index, value in zip(flat[skipped:], taken[skipped:], strict=True):
            samples[index].append(value)
        done += count
    return samples


# -- regrets ---------------------------------------------------------------------------------------
def interval(values, z: float = 1.96):
    """The 95 % interval of the median by order statistics (normal approximation to their ranks)."""
    ordered, count = sorted(values), len(values)
    reach = z * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    return ordered[max(0, low)], ordered[min(count - 1, high)]


def eliminate(clock, runs: dict, kept: set, stages: list) -> list:
    """Names that remain after the stages, the fastest first; they include all `kept` ones."""
    alive = list(runs)
    for passes, reach in STAGES:
        if len(alive) <= max(FIELD, len(kept)):
            break
        clock.warm(runs[alive[0]], 0.3)
        samples = collect(clock, [runs[name] for name in alive], passes)
        medians = {name: median(values) for name, values in zip(alive, samples, strict=True)}
        alive.sort(key=medians.__getitem__)
        best = medians[alive[0]]
        stages.append({"field": len(alive), "passes": passes, "best_us": round(best, 3)})
        alive = [name for name in alive if medians[name] <= reach * best or name in kept]
    others = [name for name in alive if name not in kept][:FIELD]
    return [name for name in alive if name in kept or name in others]


def regrets(names, samples) -> tuple[str, list]:
    """The best by the mean of logarithms, and the others' excess over it in every pass."""
    logs = {
        n: [math.log(value) for value in values] for n, values in zip(names, samples, strict=True)
    }
    best = min(logs, key=lambda name: sum(logs[name]) / len(logs[name]))
    rows = []
    for name, values in zip(names, samples, strict=True):
        ratios = [a - b for a, b in zip(logs[name], logs[best], strict=True)]
        low, high = interval(ratios)
        rows.append(
            {
                "key": name,
                "median_us": round(median(values), 3),
                "regret": math.expm1(median(ratios)),
                "regret_low": math.expm1(low),
                "regret_high": math.expm1(high),
            }
        )
    return best, sorted(rows, key=lambda row: row["regret"])


def compare(
    task, choices: dict, *, passes: int, all_configs: bool, clock_name: str, processes: int
):
    """The document that `--out` receives."""
    started = time.perf_counter()
    device = device_here()
    chosen = {config_key(config): dict(config) for config in choices.values()}
    every = configs_of(task, device) if all_configs else []
    field = {**{config_key(config): config for config in every}, **chosen}
    cache = Path(cold_cache())
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    failed = build_all(task, list(field.values()), device, cache, processes)
    built_s = time.perf_counter() - started
    runs, errors, kernels = _launch_once(Problem(task, device), field, failed, chosen)
    compared = None
    for name in dict.fromkeys((clock_name, "events")):
        try:
            compared = _compare(Clock(name, kernels), runs, set(chosen) & set(runs), passes)
            break
        except LostRecords as problem:
            print(f"{problem}; the timing continues with events", flush=True)
    best, rows, stages = compared
    labels: dict = {}
    for label, config in choices.items():
        labels.setdefault(config_key(config), []).append(label)
    for row in rows:
        row["labels"] = sorted(labels.get(row["key"], []))
        row["error"] = errors.get(row["key"])
    return {
        "space": task.name,
        "workload": task.workload.as_dict(),
        "clock": name,
        "passes": passes,
        "configs": len(field),
        "not_built": failed,
        "stages": stages,
        "build_s": round(built_s, 1),
        "wall_s": round(time.perf_counter() - started, 1),
        "best": tuned(field[best]) if task.kernel == KERNEL else field[best],
        "best_us": min(row["median_us"] for row in rows if row["key"] == best),
        "entries": rows,
        "facts": facts(),
    }


def _launch_once(problem, field: dict, failed, chosen) -> tuple[dict, dict, set[str]]:
    """A launch function per built config, the errors of the choices, and the kernels' names."""
    import torch

    runs, errors, names = {}, {}, set()
    for key, config in field.items():
        if key in failed:
            continue
        launch = problem.launch(config)
        runs[key] = runner(launch)
        names.add(launch.fn.fn.__name__)
        problem.out.fill_(float("nan"))
        runs[key]()
        torch.cuda.synchronize()
        if key in chosen:
            errors[key] = problem.error_of(problem.out)
    return runs, errors, names


def _compare(clock, runs: dict, kept: set, passes: int) -> tuple[str, list, list]:
    """The best, the rows of all configs in the long comparison, and the stages before it."""
    stages: list = []
    clock.warm(next(iter(runs.values())), 1.0)
    names = eliminate(clock, runs, kept, stages)
    clock.warm(runs[names[0]], 1.0)
    best, rows = regrets(names, collect(clock, [runs[name] for name in names], passes))
    return best, rows, stages


def runner(launch):
    """A function that runs the launch once."""
    run, arguments, constants = launch.fn[launch.grid], launch.args, launch.kwargs
    return lambda: run(*arguments, **constants)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", choices=sorted(ALL_TASKS), required=True)
    parser.add_argument("--choices", type=Path, required=True, help="JSON: label -> config")
    parser.add_argument("--passes", type=int, default=400)
    parser.add_argument("--build", choices=("all", "choices"), default="all")
    parser.add_argument("--clock", choices=("cupti", "events"), default="cupti")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    choices = json.loads(args.choices.read_text())
    document = compare(
        ALL_TASKS[args.space],
        choices,
        passes=max(300, args.passes),
        all_configs=args.build == "all",
        clock_name=args.clock,
        processes=args.processes,
    )
    write(args.out, document)
    for row in document["entries"]:
        print(f"{row['regret']:8.2%} {row['median_us']:9.2f} us  {','.join(row['labels'])}")


if __name__ == "__main__":
    main()
