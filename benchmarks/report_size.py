#!/usr/bin/env python3
"""Size of the report of a large run, and how long it takes to build and to open.

    benchmarks/report_size.py --tasks 200 --trials 100000 --out FILE.json

Trials are made by a seed; a sixth of them has failed. Prints megabytes of the file, seconds and
peak megabytes of `reports.write` in its own process, and seconds until the page in Chromium answers
a click: from the navigation until the last task is open and its first figure is drawn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import sync_playwright

from results_db import Store, TrialRecord
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.base.log_ratio import LogRatio

CHOICES = {
    "BLOCK_M": (32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (32, 64, 128),
    "group": (1, 4, 8, 16),
    "num_stages": (2, 3, 4, 5),
    "num_warps": (4, 8, 16),
}
DEVICE = Device("cuda", "NVIDIA H200", "cuda:90", 132, 150_754_820_096, 232_448, 65_536)
START = datetime(2026, 1, 1, tzinfo=UTC)
BUILD = """
import json, resource, sys, time
start = time.perf_counter()
import reports
from pathlib import Path
from results_db import Store
with Store.open(sys.argv[1]) as store:
    reports.write(store, None, Path(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
took = {"build_s": time.perf_counter() - start, "build_processor_s": time.process_time()}
print(json.dumps({**took, "peak_mb": peak}))
"""


def fill(url: str, tasks: int, trials: int) -> None:
    """Store a finished run of these numbers of tasks and trials."""
    rng = random.Random(7)
    with Store.open(url) as store:
        run = store.begin_run("large", "spec", 7, {}, {})
        for place in range(tasks):
            workload = Workload.of(M=64 * (place + 1), N=4096, K=4096, dtype="bfloat16")
            tools = Toolchain("3.12", "2.11", "3.6")
            key = TaskKey("matmul", "source", "space", workload, DEVICE, tools)
            task = store.ensure_task(run.run_id, key, flops=1e9, bytes=1e8, tolerance=0.002)
            drawn = rng.sample(list(itertools.product(*CHOICES.values())), trials // tasks)
            made = [make_trial(rng, place, *each) for each in enumerate(drawn)]
            for trial in made:
                store.record_trial(task.task_id, trial)
            best = sorted((t for t in made if t.median_us), key=lambda t: t.median_us)[:12]
            finals = [
                make_final(stage, trial, best[0]) for stage in ("race", "confirm") for trial in best
            ]
            time_us, slower = best[0].median_us, LogRatio(0.2, 0.19, 0.21)
            chosen = SelectionRecord(
                best[0].config, tuple(t.config for t in best[:3]), "faster", "fewest registers",
                best[1].config, made[0].config, time_us, 1.22 * time_us, slower, (time_us,) * 60,
            )  # fmt: skip
            eager = BaselineRecord("eager", Status.CORRECT, 1.22 * time_us, slower)
            store.record_selection(task.task_id, chosen, [eager], finals)
            store.set_stage(task.task_id, "done")
        store.finish_run(run.run_id, "finished", {})


def make_trial(rng: random.Random, task: int, number: int, values: tuple[int, ...]) -> TrialRecord:
    """One trial of a task."""
    config = dict(zip(CHOICES, values, strict=True))
    common = {
        "attempt_id": f"{task}:{number}", "number": number, "config": config, "strategy": "tpe",
        "build_s": 0.5, "worker": f"node/{number % 8}",
        "finished_at": START + timedelta(seconds=task * 1000 + number),
    }  # fmt: skip
    if rng.random() < 1 / 6:
        message = f"shared memory {rng.randrange(240, 400)} KiB exceeds the device's 227 KiB"
        return TrialRecord(**common, status=Status.COMPILE, message=message)
    time_us = 50.0 * (task + 1) * math.exp(abs(rng.gauss(0, 0.4)))
    return TrialRecord(
        **common, status=Status.CORRECT, binary_hash=f"{number}", registers=rng.randrange(32, 256),
        shared_bytes=rng.randrange(8, 228) * 1024, spill_bytes=0, device_s=0.02, timing_s=0.01,
        method="events", cache="cold", median_us=time_us,
        samples_us=(time_us,) * rng.choice((1, 3, 24)),
    )  # fmt: skip


def make_final(stage: str, trial: TrialRecord, best: TrialRecord) -> FinalRecord:
    """The trial as a finalist."""
    ln = math.log(trial.median_us / best.median_us)
    ratio = LogRatio(ln, ln - 0.003, ln + 0.003)
    return FinalRecord(stage, trial.config, Status.CORRECT, trial.median_us, ratio, (1.0,) * 64)


def open_page(path: Path) -> dict[str, float]:
    """Seconds until the page is usable."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        page.goto(path.as_uri())
        page.locator("details.task > summary").last.click()
        page.wait_for_selector("details.task[open] .main-svg", state="attached")
        usable_s = time.perf_counter() - start
        browser.close()
    return {"usable_s": usable_s}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=200)
    options.add_argument("--trials", type=int, default=100_000)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url, path = f"sqlite:///{folder}/tuner.db", Path(folder) / "report.html"
        fill(url, chosen.tasks, chosen.trials)
        command = [sys.executable, "-c", BUILD, url, str(path)]
        built = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        found = {
            "tasks": chosen.tasks,
            "trials": chosen.trials,
            "file_mb": path.stat().st_size / 1e6,
            **built,
            **open_page(path),
            # Of the last five minutes: what else the processors did.
            "load_average": os.getloadavg()[1],
        }
    shown = {name: round(value, 2) for name, value in found.items()}
    shown |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "python": platform.python_version()}
    text = json.dumps(shown, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
