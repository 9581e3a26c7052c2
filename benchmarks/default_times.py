#!/usr/bin/env python3
"""Compare today's default configs with what campaigns measured.

    benchmarks/default_times.py linear moe_matmul [--results FILE ...] [--databases FILE ...]

Of each workload in the results of `benchmarks/campaign.py`, the times of the former default and,
where it was measured too, of today's, as multiples of the winner's. The results know the winner;
a database of a campaign knows every trial. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

from results_db import Store
from search_spaces import registry
from search_spaces.records import Status, Workload
from workers.device import offline

RESULTS = Path(__file__).parent / "results" / "h200"
H200 = replace(offline("cuda:90"), sm_count=132)


def exact(config):
    return json.dumps(dict(config), sort_keys=True)


def known(paths):
    """(kernel, workload) -> {config: time over the winner's}, with "former" for the default's."""
    found = {}
    for path in paths:
        for task in json.loads(path.read_text())["tasks"]:
            if task["kernel"] in registry.BUILT_IN and task.get("speedup_over_default"):
                key = task["kernel"], Workload.from_mapping(task["workload"])
                found[key] = {exact(task["winner"]): 1.0, "former": task["speedup_over_default"]}
    return found


def trial_times(trials):
    """config -> time over the fastest trial's; each trial is timed next to an incumbent."""
    logs, former = {}, None
    for trial in trials:
        if trial.status is not Status.CORRECT or trial.median_us is None:
            continue
        incumbent = json.loads(trial.incumbent) if trial.incumbent else {}
        against = logs.get(exact(incumbent), 0.0)
        logs[exact(trial.config)] = against + (trial.log_ratio or 0.0)
        if trial.strategy == "default":
            former = exact(trial.config)
    best = min(logs.values(), default=0.0)
    times = {config: math.exp(log - best) for config, log in logs.items()}
    return times | ({"former": times[former]} if former else {})


def from_databases(paths):
    """As `known`, from databases, in their order."""
    found = {}
    for path in paths:
        with Store.open(f"sqlite:///{path.resolve()}") as store:
            for run in store.runs():
                for task in store.tasks(run.run_id):
                    times = trial_times(store.trials(task.task_id))
                    if times:
                        found[task.key.kernel, task.key.workload] = times
    return found


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--results", type=Path, nargs="*")
    parser.add_argument("--databases", type=Path, nargs="*", default=())
    args = parser.parse_args()
    paths = sorted(RESULTS.glob("*families*.json")) if args.results is None else args.results
    measured = known(paths) | from_databases(args.databases)
    for name in args.kernels:
        kernel, pairs, count = registry.load(name), [], 0
        for (kernel_name, workload), times in measured.items():
            if kernel_name != name:
                continue
            count += 1
            today = times.get(exact(kernel.default_config(workload, H200)))
            shown = f"{today:.2f}" if today else "not measured"
            print(f"{name} {workload.key}: former {times.get('former', math.nan):.2f}, {shown}")
            if today and "former" in times:
                pairs.append((times["former"], today))
        former, today = (mean([pair[at] for pair in pairs]) for at in (0, 1))
        print(f"{name}: {len(pairs)} of {count}: {former:.2f} became {today:.2f}")


if __name__ == "__main__":
    main()
