"""Regret by number of builds: strategies replayed over recorded spaces, 15 builds in flight.

A simulation: build times and kernel times were recorded on an H200, builds finish in the order of
their jittered recorded times, and timings get noise; nothing is compiled or measured. The result of
a search is the truly fastest of the 8 configs that measured best, as finals would decide. Seeds
determine samples, noise and order. Prints one JSON object to stdout and progress to stderr. Takes
some minutes on two cores.

    python benchmarks/search_regret.py > results/cpu-sim/search_regret.json
    python benchmarks/search_regret.py --spills --seeds 24 --strategies bayes \
        --spaces matmul_4096_bf16 ... > results/cpu-sim/search_regret_spills.json

With `--spills`, budget `auto` alone, each space as recorded and with configs whose accumulators
exceed the registers refused in `REFUSED_S`, as builders refuse what has to spill.
"""

import argparse
import heapq
import itertools
import json
import math
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import scipy

from results_db.stored_records import TrialRecord
from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.records import Status
from tuner import strategies
from tuner.engine.search import Search
from tuner.engine.task_spec import TaskBudget, TaskSpec
from tuner.engine.trial_table import TrialState
from workers.job_records import KernelRef

sys.path.append(f"{Path(__file__).resolve().parents[1] / 'tests'}")
from made_up_spaces import synthesize

H200 = Path(__file__).parent / "spaces" / "h200"
BUILDERS = 15
#: Standard deviations of ln(time): within 15 % of the best, where timing continues, and beyond.
NOISE_NEAR, NOISE_FAR = 0.002, 0.01
#: Standard deviation of ln(build time); seconds added to every build; seconds of one measurement.
JITTER, LATENCY_S, MEASURE_S = 0.2, 0.05, 0.0054
#: Build seconds of a config whose recording does not contain them.
BUILD_S = 0.3
#: Seconds between two checks of a search that waits for its last builds.
TICK_S = 0.1
#: Seconds until a builder refuses a config.
REFUSED_S = 0.1
FINALISTS = 8
CURVE = (20, 30, 40, 50, 60, 80, 100, 120, 150)
GOAL = 0.005


def space(name):
    """The recording of that name, bound, with the times of its configs by key."""
    file, _, narrowed = name.partition(":")
    if file.startswith("W"):
        recorded = synthesize(300, seed=int(narrowed or 0), scenario=file, failures=0.1)
    else:
        recorded = RecordedSpace.load(H200 / f"{file}.space.json")
    kernel = RecordedKernel(recorded)
    bound = kernel.space(recorded.workload).bind(recorded.workload, kernel.device)
    if narrowed and not file.startswith("W"):
        parameter, value = narrowed.split("=")
        bound = bound.restrict({parameter: [value]})
    return recorded, kernel, bound


SPACES = (
    "matmul_4096_bf16:loads=pointer",
    "matmul_4096_bf16",
    "matmul_32x8192x4096_bf16",
    "softmax_8192_bf16",
    "attention_4x16x4096x128_causal_bf16",
    "W1:1",
    "W2:2",
)


def search(name, strategy, seed, budget):
    recorded, kernel, bound = space(name)
    default = recorded.default if bound.feasible(recorded.default) else next(bound.enumerate())
    return recorded, Search(
        TaskSpec(
            task_id=1,
            label=name,
            kernel=KernelRef(name),
            workload=recorded.workload,
            device=kernel.device,
            space=bound,
            strategy=strategies.create(strategy, bound, seed),
            default=dict(default),
            budget=budget,
        )
    )


def must_spill(config):
    """Whether a product's accumulators of 32 bits exceed the 255 registers of its threads."""
    tile = config.get("BLOCK_M", 0) * config.get("BLOCK_N", 0)
    return tile > 255 * 32 * config.get("num_warps", 4)


def play(name, strategy, seed, budget, refuses=False):
    """One search: regret after each result, CPU seconds per trial, simulated seconds."""
    recorded, searched = search(name, strategy, seed, budget)
    rng = np.random.default_rng(seed)
    best_us = min(recorded[c].median_us or math.inf for c in searched.spec.space.enumerate())
    builds, serial = [], itertools.count()
    now, free, spent_s, regrets, measured = 0.0, 0.0, 0.0, [], []

    def ask():
        nonlocal spent_s
        while len(builds) < BUILDERS:
            began = time.process_time()
            trial = searched.asker.next_trial(now)
            spent_s += time.process_time() - began
            if trial is None:
                return
            searched.trials.start_build(trial)
            refused = refuses and trial.number and must_spill(trial.config)
            takes = REFUSED_S if refused else recorded[trial.config].build_s or BUILD_S
            takes *= math.exp(JITTER * rng.normal())
            heapq.heappush(builds, (now + takes + LATENCY_S, next(serial), trial))

    ask()
    while builds and not searched.asker.exhausted:
        if searched.asker.waiting_for_results and now + TICK_S < builds[0][0]:
            now += TICK_S
            ask()
            continue
        now, _, trial = heapq.heappop(builds)
        if trial.state is TrialState.DROPPED:
            ask()
            continue
        free = max(free, now) + MEASURE_S
        entry = recorded[trial.config]
        if refuses and trial.number and must_spill(trial.config):
            entry = replace(
                entry, status=Status.CONSTRAINTS, median_us=None, spill_bytes=4, registers=None
            )
        began = time.process_time()
        searched.finish(trial, _record(trial, entry, best_us, rng))
        spent_s += time.process_time() - began
        if entry.median_us is not None:
            measured.append((trial.score, entry.median_us))
            measured = sorted(measured)[:FINALISTS]
        chosen_us = min((us for _, us in measured), default=math.inf)
        regrets.append(chosen_us / best_us - 1)
        ask()
    return regrets, spent_s / len(regrets), free


def _record(trial, entry, best_us, rng):
    """The result of a trial, built and measured."""
    median_us = entry.median_us
    if median_us is not None:
        near = median_us < 1.15 * best_us
        median_us *= math.exp(rng.normal(0.0, NOISE_NEAR if near else NOISE_FAR))
    return TrialRecord(
        attempt_id=f"{trial.number}",
        number=trial.number,
        config=trial.config,
        status=entry.status,
        message=entry.message,
        build_s=entry.build_s or BUILD_S,
        spill_bytes=entry.spill_bytes,
        registers=entry.registers,
        median_us=median_us if entry.status is Status.CORRECT else None,
    )


def curve(job):
    """Regret after several numbers of results, with a fixed number of trials, over all seeds."""
    name, strategy, seeds = job
    size = space(name)[2].size()
    limit = min(max(CURVE), size)
    runs = [play(name, strategy, seed, TaskBudget(trials=limit)) for seed in range(seeds)]
    table = np.array([regrets for regrets, _, _ in runs])
    return {
        "space": name,
        "configs": size,
        "strategy": strategy,
        "ask_and_tell_cpu_ms": round(1e3 * float(np.mean([ms for _, ms, _ in runs])), 3),
        "after": {str(n): _summary(table[:, n - 1]) for n in CURVE if n <= limit},
    }


def auto(job):
    """Budget `auto`: the number of builds at which it ends, and the regret at that point."""
    name, strategy, seeds, *refuses = job
    runs = [play(name, strategy, seed, TaskBudget(gain=GOAL), *refuses) for seed in range(seeds)]
    builds = [len(regrets) for regrets, _, _ in runs]
    return {
        "space": name,
        "strategy": strategy,
        **({"refused": refuses[0]} if refuses else {}),
        "builds": {"median": float(np.median(builds)), "p90": float(np.percentile(builds, 90))},
        "simulated_s": {
            "mean": round(float(np.mean([s for _, _, s in runs])), 2),
            "p90": round(float(np.percentile([s for _, _, s in runs], 90)), 2),
        },
        "ask_and_tell_cpu_ms": round(1e3 * float(np.mean([ms for _, ms, _ in runs])), 3),
        **_summary(np.array([regrets[-1] for regrets, _, _ in runs])),
    }


def _summary(regrets):
    return {
        "within_goal": round(float(np.mean(regrets <= GOAL)), 3),
        "mean_percent": round(100 * float(np.mean(regrets)), 3),
        "p90_percent": round(100 * float(np.percentile(regrets, 90)), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--strategies", nargs="+", default=["random", "tpe", "bayes"])
    parser.add_argument("--spaces", nargs="+", default=list(SPACES))
    parser.add_argument("--spills", action="store_true")
    arguments = parser.parse_args()
    pairs = [(n, s, arguments.seeds) for n in arguments.spaces for s in arguments.strategies]
    learning = [pair for pair in pairs if pair[1] == "bayes"]
    if arguments.spills:
        learning = [(*pair, refuses) for pair in learning for refuses in (False, True)]
        pairs = []
    curves, ends = [], []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for line in pool.map(auto, learning):
            ends.append(line)
            print(json.dumps(line), file=sys.stderr, flush=True)
        for line in pool.map(curve, pairs):
            curves.append(line)
            print(json.dumps(line), file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                "what": "simulation over times recorded on an NVIDIA H200 (W1, W2: synthetic)",
                "date": datetime.now(UTC).date().isoformat(),
                "host": {"machine": platform.machine(), "python": platform.python_version()},
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                "seeds": arguments.seeds,
                "builds_in_flight": BUILDERS,
                "goal_percent": 100 * GOAL,
                "auto": ends,
                "fixed_trials": curves,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
