#!/usr/bin/env python3
"""`@triton.autotune` over one task's configs: its choice and the duration of the first call.

    benchmarks/triton_autotune_run.py --space a --out DIR/triton_a.json [--limit 20]

The decorator wraps tuner's kernel with all configs, its default do_bench and an empty cache.
Seconds run from the first call to its result; process start, imports and inputs are not counted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from matmul_tasks import TASKS, TUNED, Problem, cold_cache, device_here, facts, tuned, write


def autotuned(problem, limit):
    """Tuner's kernel under the decorator, the call that starts it, and the number of configs."""
    import triton

    chosen = problem.configs[:: max(1, len(problem.configs) // limit)] if limit else problem.configs
    launches = [problem.launch(config) for config in chosen]
    fixed = [{k: v for k, v in launch.kwargs.items() if k not in TUNED} for launch in launches]
    if any(other != fixed[0] for other in fixed):
        raise SystemExit("the configs differ in parameters that a triton.Config cannot set")
    configs = [_config(tuned(config)) for config in chosen]
    fn = triton.autotune(configs=configs, key=["M", "N", "K"])(launches[0].fn)
    m, n = (problem.task.workload.size(name) for name in "MN")

    def grid(meta):
        return triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), 1

    def call():
        fn[grid](*launches[0].args, **fixed[0])

    return fn, call, len(configs)


def _config(part):
    import triton

    options = {name: part.pop(name) for name in ("num_warps", "num_stages")}
    return triton.Config(part, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", choices=sorted(TASKS), required=True)
    parser.add_argument("--limit", type=int, default=0, help="use about this many of the configs")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cold_cache()
    import torch

    problem = Problem(TASKS[args.space], device_here())
    fn, call, count = autotuned(problem, args.limit)
    torch.mm(problem.inputs["a"], problem.inputs["b"])
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    best = fn.best_config
    chosen = {**best.kwargs, "num_warps": best.num_warps, "num_stages": best.num_stages}
    times = {str(config): time_ms for config, time_ms in fn.configs_timings.items()}
    medians = [value[0] if isinstance(value, (list, tuple)) else value for value in times.values()]
    document = {
        "rival": "triton.autotune",
        "space": args.space,
        "configs": count,
        "failed": sum(value == float("inf") for value in medians),
        "seconds": round(seconds, 3),
        "winner": problem.full_config(chosen),
        "claimed_us": round(min(medians) * 1000, 2),
        "error": problem.error_of(problem.out),
        "facts": facts(),
    }
    write(args.out, document)
    print(f"triton.autotune {args.space}: {seconds:.1f} s for {count} configs, {tuned(chosen)}")


if __name__ == "__main__":
    main()
