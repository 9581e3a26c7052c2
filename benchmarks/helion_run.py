#!/usr/bin/env python3
"""Helion's autotuner for an external kernel, over one task's configs, from a cold cache.

    benchmarks/helion_run.py --space a --algorithm PatternSearch --wheels DIR --out FILE

`helion.autotuner.autotune` receives tuner's parameters as its fragments, a `compile_fn` that
launches tuner's kernel, cuBLAS as the baseline of its accuracy check, and the list of configs as
its filter; everything else is its default. `NAME:quick` selects its effort profile `quick`.
`NAME:steady` lets it time its finalists in this process. By default, Helion 1.5.1 uses another
process for that, cannot send it kernels that Helion has not generated, and skips its final
selection (about 48 s of windows of 1 s).

Helion comes from its wheel in DIR (`pip download --no-deps helion`) or from the installed packages.
It needs scikit-learn, psutil and rich, and is no dependency of this project. Seconds run from the
call to its result; process start, imports, inputs and the CUDA context are not counted. `search_s`
ends where its final selection begins.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from matmul_tasks import (
    TASKS,
    Problem,
    cold_cache,
    default_of,
    device_here,
    facts,
    tuned,
    write,
)

from search_spaces.records import config_key


def import_helion(wheels: Path | None):
    """Import Helion from the newest wheel in the folder, with a substitute for a name torch 2.11
    lacks.

    Helion 1.5 imports `IntelGPUError` from torch's Inductor, only to classify exceptions.
    """
    from torch._inductor.runtime import triton_compat

    if not hasattr(triton_compat, "IntelGPUError"):
        triton_compat.IntelGPUError = type("IntelGPUError", (RuntimeError,), {})
    files = sorted(wheels.glob("helion-*.whl")) if wheels else []
    if files:
        folder = tempfile.mkdtemp(prefix="helion-")
        with zipfile.ZipFile(files[-1]) as wheel:
            wheel.extractall(folder)
        # Helion's benchmark worker is another process that imports Helion again.
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        sys.path.insert(0, folder)
    import helion

    return helion


def fragments(configs, default):
    """Tuner's parameters as Helion's fragments, without parameters of one value; defaults are
    tuner's.
    """
    from helion.autotuner import EnumFragment, IntegerFragment, PowerOfTwoFragment

    made, fixed = {}, {}
    for name in tuned(configs[0]):
        values = sorted({int(config[name]) for config in configs})
        low, high, start = values[0], values[-1], int(default[name])
        if low == high:
            fixed[name] = low
        elif values == [low << step for step in range(len(values))]:
            made[name] = PowerOfTwoFragment(low, high, start)
        elif values == list(range(low, high + 1)):
            made[name] = IntegerFragment(low, high, start)
        else:
            made[name] = EnumFragment((start, *(v for v in values if v != start)))
    return made, fixed


class Watch:
    """Helion's counters, and the times at which its search ends and its final selection begins."""

    def __init__(self):
        from helion.autotuner.base_search import PopulationBasedSearch
        from helion.autotuner.metrics import register_post_autotune_hook

        self.metrics, self.search_ended, self.compiled = {}, None, set()
        register_post_autotune_hook(lambda metrics: self.metrics.update(metrics.to_dict()))
        original, watch = PopulationBasedSearch.final_rebenchmark_best, self

        def timed(search, best):
            watch.search_ended = time.perf_counter()
            return original(search, best)

        PopulationBasedSearch.final_rebenchmark_best = timed


def search_options(algorithm: str) -> tuple[str, dict]:
    """`NAME`, `NAME:quick` or `NAME:steady` as the name and its keyword arguments."""
    name, _, effort = algorithm.partition(":")
    if not effort:
        return name, {}
    if effort == "steady":
        return name, {"autotune_benchmark_subprocess": False}
    from helion.autotuner import search_algorithms
    from helion.autotuner.effort_profile import get_effort_profile
    from helion.runtime.settings import Settings

    profile = get_effort_profile(effort)
    kwargs = search_algorithms[name].get_kwargs_from_profile(profile, Settings())
    return name, {**kwargs, "autotune_effort": effort}


def tune(problem, algorithm, seed, watch, extra):
    """Helion's choice as a tuner config."""
    import torch
    from helion.autotuner import autotune

    made, fixed = fragments(problem.configs, default_of(problem.task, device_here()))
    allowed = {config_key(tuned(config)) for config in problem.configs}

    def complete(config):
        return {**fixed, **{name: int(config[name]) for name in made}}

    def compile_fn(config):
        full_config = problem.full_config(complete(config))
        watch.compiled.add(config_key(full_config))

        launch = problem.launch(full_config)
        kernel, rest, constants = launch.fn[launch.grid], launch.args[3:], launch.kwargs

        def run(a, b):
            out = torch.empty_like(problem.out)
            kernel(a, b, out, *rest, **constants)
            return out

        return run

    name, options = search_options(algorithm)
    best = autotune(
        tunables=made,
        compile_fn=compile_fn,
        args=(problem.inputs["a"], problem.inputs["b"]),
        baseline_fn=torch.matmul,
        algorithm=name,
        autotune_random_seed=seed,
        autotune_progress_bar=False,
        autotune_config_filter=lambda config: (
            config if config_key(complete(config)) in allowed else None
        ),
        **{**options, **extra},
    )
    return problem.full_config(complete(best))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", choices=sorted(TASKS), required=True)
    parser.add_argument("--algorithm", default="PatternSearch", metavar="NAME[:quick|:steady]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--generations", type=int, help="fewer generations than Helion's default, for a short test"
    )
    parser.add_argument(
        "--population", type=int, help="smaller population than Helion's default, for a short test"
    )
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cold_cache()
    import torch

    helion = import_helion(args.wheels)
    watch = Watch()
    problem = Problem(TASKS[args.space], device_here())
    torch.mm(problem.inputs["a"], problem.inputs["b"])
    torch.cuda.synchronize()
    extra = {"max_generations": args.generations, "initial_population": args.population}
    extra = {name: value for name, value in extra.items() if value is not None}
    started = time.perf_counter()
    winner = tune(problem, args.algorithm, args.seed, watch, extra)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    search_s = watch.search_ended - started if watch.search_ended else seconds
    document = {
        "rival": f"helion {args.algorithm}",
        "version": version_of(helion),
        "space": args.space,
        "seed": args.seed,
        "reduced": extra,
        "seconds": round(seconds, 3),
        "search_s": round(search_s, 3),
        "configs": len(watch.compiled),
        "winner": winner,
        "metrics": {k: v for k, v in watch.metrics.items() if k.startswith("num_")},
        "claimed_us": round(1000 * watch.metrics.get("best_perf_ms", 0.0), 2),
        "facts": facts(),
    }
    write(args.out, document)
    print(
        f"helion {args.algorithm} {args.space}: {seconds:.1f} s ({search_s:.1f} s search) "
        f"over {len(watch.compiled)} configs, {tuned(winner)}"
    )


def version_of(module) -> str:
    from importlib.metadata import version

    return getattr(module, "__version__", None) or version("helion")


if __name__ == "__main__":
    main()
