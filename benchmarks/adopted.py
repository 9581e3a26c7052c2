"""Kernels of PyPI packages, adopted unchanged: tuner's winner against `triton.autotune`'s choice.

For each kernel of tests/adopted, the script tunes the first workload, runs the package's own
autotuner on the same device, measures both configs in one confirmation, and launches the kernel
through `tuner.runtime.autotune` from the exported table. Usage:

    python benchmarks/adopted.py --out OUT [--trials 40] [--kernels fla_gla_dv ...]

Writes OUT/adopted.json. Packages may lie anywhere on Python's import path.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "adopted")]

from adopted_kernels import (  # noqa: E402
    FOLDER,
    KERNELS,
    Adopted,
    choice_of_triton,
    launch_from_table,
)

from search_spaces.kernel import Kernel  # noqa: E402
from search_spaces.records import Config, config_key  # noqa: E402


def settings_for(names: list[str], folder: Path, trials: int):
    from tuner.settings import validate

    tasks = [
        {
            "kernel": KERNELS[name].spec,
            "workloads": [KERNELS[name].load().workloads()[0].as_dict()],
        }
        for name in names
    ]
    campaign = {"targets": ["cuda"], "tasks": tasks, "budget": {"trials": trials}}
    document = {
        "version": 1,
        "database": {"url": f"sqlite:///{folder}/tuner.db"},
        "paths": {"tables": "tables"},
        "measure": {"baselines": ["eager"]},
        "campaigns": {"adopted": campaign},
    }
    return validate(document, str)


def tuned(names: list[str], folder: Path, trials: int) -> dict[str, dict]:
    """Tune the kernels in one campaign and return the stored results by kernel."""
    from results_db import Store
    from tuner.campaign import RunOptions, run_campaign

    settings = settings_for(names, folder, trials)
    started = time.monotonic()
    run = run_campaign(settings, "adopted", options=RunOptions(base=folder))
    elapsed_s = time.monotonic() - started
    print(f"{run.summary}; {elapsed_s:.0f} s", flush=True)
    results = {}
    with Store.open(settings.database.url) as store:
        tasks = {task.key.kernel: task for task in store.tasks(run.run_id)}
        for name in names:
            task = tasks[KERNELS[name].load().name]
            trials_of = store.trials(task.task_id)
            chosen = task.selection
            results[name] = {
                "workload": task.key.workload.as_dict(),
                "device": task.key.device.name,
                "toolchain": asdict(task.key.toolchain),
                "statuses": dict(Counter(str(trial.status) for trial in trials_of)),
                "messages": sorted({t.message.splitlines()[0] for t in trials_of if t.message}),
                "compiled_on_device": sum(trial.compiled for trial in trials_of),
                "winner": dict(chosen.winner) if chosen else None,
                "verdict": chosen.verdict if chosen else None,
                "reason": chosen.reason if chosen else None,
                "median_us": chosen.median_us if chosen else None,
                "over_default": ratio(chosen.default_us, chosen.median_us) if chosen else None,
                "over_eager": ratio(
                    next((b.median_us for b in task.baselines if b.name == "eager"), None),
                    chosen.median_us if chosen else None,
                ),
            }
    return results


def ratio(baseline_us: float | None, median_us: float | None) -> float | None:
    return baseline_us / median_us if baseline_us and median_us else None


def compare_with_triton(name: str, folder: Path, winner: Config) -> dict:
    """Run the package's own autotuner, and launch from the table; runs in its own process."""
    adopted = KERNELS[name]
    kernel = adopted.load()
    workload = kernel.workloads()[0]
    started = time.monotonic()
    triton_choice = choice_of_triton(kernel, workload)
    autotune_s = time.monotonic() - started
    table_launch = launch_from_table(adopted, kernel, workload, winner, folder / "tables")
    return {"triton_choice": triton_choice, "triton_autotune_s": autotune_s, "table": table_launch}


def side_by_side(name: str, folder: Path, winner: Config, triton_choice: Config) -> dict:
    """The farm's winner and `triton.autotune`'s choice in one interleaved confirmation."""
    from tuner.bench import Variant, bench, bench_target

    if config_key(winner) == config_key(triton_choice):
        return {"over_triton_choice": 1.0, "interval": [1.0, 1.0], "same_config": True}
    settings = settings_for([name], folder, 1)
    looked_at = bench_target(settings, folder, KERNELS[name].spec)
    workload = looked_at.workloads[0]
    pair = [Variant("winner", winner), Variant("triton", triton_choice)]
    rows = next(iter(bench(settings, looked_at, {workload: pair}, baselines=("none",)))).rows
    other = next(row for row in rows if row.variant == "triton")
    return {
        "over_triton_choice": other.ratio,
        "interval": [other.ratio_low, other.ratio_high],
        "status": str(other.status),
        "same_config": False,
    }


def lines_of(adopted: Adopted, kernel: Kernel) -> int:
    """Lines of the `adopt` call, without those of the helper functions it names."""
    tree = ast.parse((FOLDER / adopted.file).read_text())
    for node in tree.body:
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if named and node.targets[0].id == adopted.attribute:
            return node.end_lineno - node.lineno + 1
    raise LookupError(adopted.attribute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS), choices=list(KERNELS))
    parser.add_argument("--one", nargs=2, metavar=("NAME", "WINNER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.one:
        name, winner = options.one[0], json.loads(options.one[1])
        print(json.dumps(compare_with_triton(name, folder, winner)))
        return
    result = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "trials": options.trials}
    kernels = result["kernels"] = tuned(options.kernels, folder, options.trials)
    for name, facts in kernels.items():
        adopted = KERNELS[name]
        kernel = adopted.load()
        facts["package"] = f"{adopted.package} {importlib.metadata.version(adopted.package)}"
        facts["declaration_lines"] = lines_of(adopted, kernel)
        facts["configs"] = len(kernel._parts.configs)
        if facts["winner"] is not None:
            facts |= compared(name, folder, facts["winner"])
        print(name, json.dumps(facts), flush=True)
        (folder / "adopted.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")


def compared(name: str, folder: Path, winner: Config) -> dict:
    """The comparison with `triton.autotune`, or why there is none."""
    command = [sys.executable, __file__, "--out", str(folder), "--one", name, json.dumps(winner)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"problem": done.stderr[-2000:]}
    comparison = json.loads(done.stdout.splitlines()[-1])
    return comparison | side_by_side(name, folder, winner, comparison["triton_choice"])


if __name__ == "__main__":
    main()
