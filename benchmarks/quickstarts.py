"""Do quickstarts of one seed agree? Run several, then compare all that they ship side by side.

    python benchmarks/quickstarts.py FOLDER [--runs 10] [--busy 5] [--pairs 300] [--only-cpu]
        [--output FILE]

Each run has a folder and a database of its own in FOLDER, and is not repeated where it is there;
the last `--busy` ones run beside a process that never sleeps. The output names, for each run, the
seconds from Enter to the prompt, and for each CPU task the median of what it ships in the search
over that in the confirmation; then, for each task, the time of what each run ships over the best of
all runs by one long interleaved comparison (`tuner bench`). `alone_us` is a control: the median of
one config in several such comparisons without any search, which says how far the machine itself
repeats a figure. Keep the machine quiet while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton

from results_db import Store
from results_db.shipped import select_shipped
from results_db.stored_records import TaskInfo
from search_spaces.records import config_key
from workers.host import cpu_device

ROOT = Path(__file__).resolve().parents[1]
_TUNER = (sys.executable, "-m", "tuner")
#: A winner within this share of the best of all is as good.
_ALLOWED = 0.05
_CONTROLS = 5


@dataclass(frozen=True, slots=True)
class Winner:
    """What one run ships for one task."""

    kernel: str
    #: The options of `--workload`.
    workload: dict[str, object]
    config: dict[str, object]
    #: Its median in the search, microseconds.
    search_us: float
    #: Its median in the confirmation, microseconds.
    confirmed_us: float

    @property
    def task(self) -> str:
        return f"{self.kernel} " + " ".join(f"{k}={v}" for k, v in self.workload.items())


def run_quickstart(folder: Path, *options: str) -> tuple[float, list[Winner]]:
    """Wall time in seconds of one quickstart in a folder, and its winners on the CPU."""
    wall = folder / "wall_s"
    if not wall.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "config.yaml", folder)
        began = time.monotonic()
        command = [*_TUNER, "run", "quickstart", "--quiet", *options]
        subprocess.run(command, cwd=folder, check=True)
        wall.write_text(f"{time.monotonic() - began}")
    return float(wall.read_text()), _read_winners(folder / "results/tuner.db")


@contextmanager
def beside_busy_process() -> Iterator[None]:
    """A process that never sleeps, in a session of its own."""
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command, start_new_session=True) as busy:
        try:
            yield
        finally:
            busy.kill()


def _read_winners(database: Path) -> list[Winner]:
    with Store.open(f"sqlite:///{database}", create=False) as store:
        tasks = [store.task(task.task_id) for task in store.list_confirmed()]
        return [_read_winner(store, task) for task in tasks if task.key.device.kind == "cpu"]


def _read_winner(store: Store, task: TaskInfo) -> Winner:
    selection = task.selection
    if selection is None or selection.median_us is None:
        raise SystemExit(f"{task.key.kernel}: the run has no confirmed winner")
    ships = select_shipped(selection)
    winner = config_key(ships.config)
    (search_us,) = (
        trial.median_us
        for trial in store.trials(task.task_id)
        if config_key(trial.config) == winner and trial.median_us is not None
    )
    workload = dict(task.key.workload.dims)
    assert ships.median_us is not None
    return Winner(task.key.kernel, workload, dict(ships.config), search_us, ships.median_us)


def bench(winner: Winner, configs: Sequence[dict[str, object]], pairs: int) -> list[dict]:
    """The rows of `tuner bench` for configs of the winner's task."""
    options = [f"--config={json.dumps(config)}" for config in configs]
    workload = " ".join(f"{name}={value}" for name, value in winner.workload.items())
    command = [*_TUNER, "bench", winner.kernel, "--target=cpu", f"--workload={workload}"]
    command += [*options, f"--pairs={pairs}", "--baseline=none", "--format=json"]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [row for row in json.loads(found) if row["kind"] == "config"]


def compare_side_by_side(winners: Sequence[Winner], pairs: int) -> list[float]:
    """The time of each run's winner over that of the best, from one interleaved comparison."""
    distinct = list({config_key(winner.config): winner.config for winner in winners}.values())
    if len(distinct) == 1:
        return [1.0] * len(winners)
    rows = bench(winners[0], distinct, pairs)
    ratios = {config_key(row["config"]): row["ratio"] for row in rows}
    best = min(ratios.values())
    return [ratios[config_key(winner.config)] / best for winner in winners]


def judge_task(winners: Sequence[Winner], pairs: int) -> dict[str, object]:
    """What the runs say of one task: their winners, and how far these are from the best."""
    over_best = compare_side_by_side(winners, pairs)
    alone = [bench(winners[0], [winners[0].config], pairs)[0] for _ in range(_CONTROLS)]
    shares = [winner.search_us / winner.confirmed_us for winner in winners]
    return {
        "distinct_winners": len({config_key(winner.config) for winner in winners}),
        "over_best": [round(ratio, 4) for ratio in over_best],
        "within_5_percent": sum(ratio <= 1 + _ALLOWED for ratio in over_best),
        "confirmed_us": [winner.confirmed_us for winner in winners],
        "alone_us": [row["median_us"] for row in alone],
        "search_over_confirmation": [round(share, 3) for share in shares],
        "configs": [dict(winner.config) for winner in winners],
    }


def main() -> None:
    """Parse the options, run, print and write the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, help="runs beside a busy process")
    parser.add_argument("--pairs", type=int, default=300, help="passes of the long comparison")
    parser.add_argument("--only-cpu", action="store_true", help="only the tasks of the CPU")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    walls, by_task = [], defaultdict(list)
    only = ["--kernel=cpu_cross_entropy", "--kernel=cpu_rms_norm"] * options.only_cpu
    for run in range(options.runs):
        beside = run >= options.runs - options.busy
        with beside_busy_process() if beside else nullcontext():
            wall, winners = run_quickstart(options.folder / f"{run}", *only)
        walls.append(round(wall, 1))
        for winner in winners:
            by_task[winner.task].append(winner)
        print(f"run {run + 1}: {wall:.1f} s", file=sys.stderr)
    outcome = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": cpu_device().name,
        "processors": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "only_cpu": options.only_cpu,
        "runs_beside_a_busy_process": options.busy,
        "wall_s": walls,
        "wall_median_s": statistics.median(walls),
        "tasks": {task: judge_task(winners, options.pairs) for task, winners in by_task.items()},
    }
    text = json.dumps(outcome, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
