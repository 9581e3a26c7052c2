#!/usr/bin/env python3
"""Scaling of a campaign of 32 tasks from one device to four, in virtual time: a simulation.

    benchmarks/virtual_gpus.py --gpus 1 2 4 --out FILE.json

The real engine runs over the pool `virtual` with synthetic spaces and builds of about half a
second. Devices take time for each candidate, for the inputs of a task that they do not hold, and
for the fresh process of a repeated confirmation. Each device brings the builders of 16 cores, less
one core that launches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import virtual_time

from search_spaces.recorded.recorded_kernel import RecordedKernel, RecordedSpace
from search_spaces.recorded.synthetic import synthesize
from tuner import strategies
from tuner.engine import Engine, Finish, Select, TaskBudget, TaskSpec
from workers.job_records import KernelRef, PoolSpec
from workers.pools.virtual import VirtualPool

TASKS, TRIALS, CONFIGS = 32, 40, 160
BUILDERS_PER_GPU = 15
#: Seconds of a build (about those on an H200 host), of a candidate, of a task's inputs and
#: references, and of a fresh process; the last three are somewhat longer than on an H200.
BUILD_S, HOST_S, SETUP_S, FRESH_S = 0.43, 0.03, 0.3, 4.0
SCENARIO_IDS = ("W1", "W2", "W5", "W6")
#: Minimum speed-up of four devices.
BOUND = 3.6


@dataclass(frozen=True, slots=True)
class Scaled:
    """One campaign: virtual seconds, the share of them in which devices worked, and the results."""

    wall_s: float
    busy_share: float
    configs: int
    selected: int
    regret_mean: float


def make_tasks(folder: Path, tasks: int = TASKS, build_s: float = BUILD_S) -> list[Path]:
    """Files of synthetic spaces with different build times, `build_s` on average."""
    paths = []
    for index in range(tasks):
        space = synthesize(
            CONFIGS,
            seed=index,
            scenario=SCENARIO_IDS[index % len(SCENARIO_IDS)],
            kernel=f"made_up_{index}",
            build_s=build_s * (1 + index % 4) / 2.5,
            failures=0.05,
            twins=0.1,
        )
        paths.append(folder / f"task{index}.space.json")
        space.save(paths[-1])
    return paths


def _spec(number: int, path: Path, trials: int) -> TaskSpec:
    space = RecordedSpace.load(path)
    kernel = RecordedKernel(space)
    bound = kernel.space(space.workload).bind(space.workload, kernel.device)
    return TaskSpec(
        task_id=number,
        label=space.kernel,
        kernel=KernelRef(f"recorded:{path}"),
        workload=space.workload,
        device=kernel.device,
        space=bound,
        strategy=strategies.create("exhaustive", bound, number, {"shuffle": True}),
        default=dict(space.default),
        budget=TaskBudget(trials=trials),
        finalists=16,
    )


def campaign(
    paths: list[Path], devices: int, trials: int = TRIALS, in_flight: int | None = None
) -> Scaled:
    """The campaign on a number of devices; the result is deterministic."""
    spaces = [RecordedSpace.load(path) for path in paths]
    specs = [_spec(number, path, trials) for number, path in enumerate(paths)]
    builders = devices * BUILDERS_PER_GPU
    pool = VirtualPool(
        PoolSpec("virtual", {"simulated": devices}, builders, options={"simulated": {"seed": 1}}),
        host_s=HOST_S,
        setup_s=SETUP_S,
        fresh_s=FRESH_S,
    )
    engine = Engine(specs, builders=builders, in_flight=in_flight)
    searches = {task.spec.task_id: task.search for task in engine.tasks}
    end, regrets = None, []
    for instruction in virtual_time.instructions(engine, pool):
        if isinstance(instruction, Select):
            space, winner = spaces[instruction.task_id], instruction.selection.winner
            tried = [t.config for t in searches[instruction.task_id].rank_trials()]
            best_us = min(space[config].median_us for config in tried)
            regrets.append(space[winner].median_us / best_us - 1)
        elif isinstance(instruction, Finish):
            end = instruction
    assert end is not None
    if end.status != "finished":
        raise RuntimeError(end.message)
    dispatcher = engine.dispatcher
    return Scaled(
        wall_s=round(pool.clock(), 3),
        busy_share=round(dispatcher.busy_s / (devices * pool.clock()), 4),
        configs=dispatcher.configs,
        selected=len(regrets),
        regret_mean=round(sum(regrets) / len(regrets), 5),
    )


def scaling(counts: list[int], tasks: int = TASKS, trials: int = TRIALS) -> dict[int, Scaled]:
    with tempfile.TemporaryDirectory(prefix="tuner-virtual-") as folder:
        paths = make_tasks(Path(folder), tasks)
        return {devices: campaign(paths, devices, trials) for devices in counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = scaling(args.gpus, args.tasks, args.trials)
    first = runs[args.gpus[0]]
    lines = {
        str(devices): {
            "wall_s": run.wall_s,
            "speedup": round(first.wall_s / run.wall_s, 3),
            "busy_share": run.busy_share,
            "configs": run.configs,
            "selection_regret_mean": run.regret_mean,
        }
        for devices, run in runs.items()
    }
    for devices, line in lines.items():
        print(devices, line)
    if args.out:
        document = {
            "script": "benchmarks/virtual_gpus.py",
            "what": "simulated: no device was used",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "tasks": args.tasks,
            "trials": args.trials,
            "builders_per_gpu": BUILDERS_PER_GPU,
            "seconds": {"build": BUILD_S, "host": HOST_S, "setup": SETUP_S, "fresh": FRESH_S},
            "gpus": lines,
        }
        args.out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
