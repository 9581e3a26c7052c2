#!/usr/bin/env python3
"""Duration of listings and pages over a database of many trials, each with its samples.

    benchmarks/large_database.py --trials 1000000 --tasks 100 --out FILE.json

Half of the tasks have a winner, the others are running. Prints seconds: wall and processor time of
the summary that `tuner status` reads; processor time of whole commands, each in its own process; of
pages of `tuner serve`, the first answer and the slowest of 50 clients that ask at once; and, for
comparison, loading the trials of one task with their samples.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from results_db import Store, TrialRecord
from results_db.stored_records import SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload

SAMPLES = tuple(70.1 + 0.25 * number for number in range(60))
TIMES = 5


def fill(url: str, trials: int, tasks: int) -> tuple[int, int]:
    """Store a run with these numbers of trials and tasks; returns its id and its last task's."""
    device = Device(kind="cuda", name="NVIDIA H200", target="cuda:90")
    with Store.open(url) as store:
        run = store.begin_run("nightly", "spec", 1, {}, {})
        for number in range(tasks):
            key = TaskKey("softmax", "0", "0", Workload.of(M=number), device, Toolchain())
            task = store.ensure_task(run.run_id, key, flops=1, bytes=1, tolerance=None)
            right = {"config": {"BLOCK": -1}, "median_us": 70.1, "samples_us": SAMPLES}
            record = TrialRecord(f"{number}", trials, status=Status.CORRECT, **right)
            store.record_trial(task.task_id, record)
            if number % 2:
                chosen = SelectionRecord(right["config"], (), "faster", median_us=70.1)
                store.record_selection(task.task_id, chosen, ())
    copy_trials(Path(url.removeprefix("sqlite:///")), trials, tasks)
    return run.run_id, task.task_id


def copy_trials(path: Path, trials: int, tasks: int) -> None:
    """Multiply each task's single trial by copying rows; a seventh of the copies has failed."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, key in (("trial", "id"), ("measurement", "trial_id")):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            new = {name: name for name in names}
            new[key] = f"{key} + number * {tasks}"
            if table == "trial":
                new |= {"number": "n.number", "attempt_id": "attempt_id || '-' || n.number"}
                new |= {"config_hash": "hex(randomblob(16))", "id": f"id + n.number * {tasks}"}
                new["status"] = "CASE n.number % 7 WHEN 0 THEN 'compile' ELSE status END"
            connection.execute(
                f"""WITH RECURSIVE n(number) AS (
                    SELECT 1 UNION ALL SELECT number + 1 FROM n
                    WHERE number < {trials // tasks - 1})
                INSERT INTO {table} ({", ".join(names)})
                SELECT {", ".join(new[name] for name in names)} FROM n, {table}
                WHERE {table}.{key} <= {tasks}"""
            )


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The median seconds of a few calls."""

    def each() -> Iterator[float]:
        for _ in range(TIMES):
            began = clock()
            call()
            yield clock() - began

    return round(statistics.median(each()), 3)


def measure(trials: int, tasks: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="tuner-status-") as folder:
        url = f"sqlite:///{folder}/tuner.db"
        run, last = fill(url, trials, tasks)
        Path(folder, "config.yaml").write_text(f"version: 1\ndatabase: {{url: '{url}'}}\n")
        command = [sys.executable, "-m", "tuner"]
        # Installed packages have byte code, also where this process may write none.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/byte_code"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def tuner(*arguments: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [*command, *arguments],
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return sum(after[:2]) - sum(before[:2])

        with Store.open(url, create=False) as store:
            tasks_read = store.overview(run)
            assert sum(task.trials for task in tasks_read) == trials
            return {
                "file_mb": round(Path(folder, "tuner.db").stat().st_size / 1e6),
                "summary_s": seconds(lambda: store.overview(run)),
                "summary_cpu_s": seconds(lambda: store.overview(run), time.process_time),
                "trials_of_one_task_s": seconds(lambda: store.trials(last)),
                "commands_cpu_s": {
                    # The first call makes the byte code.
                    name: round(statistics.median([tuner(name) for _ in range(TIMES + 1)][1:]), 3)
                    for name in ("status", "best", "runs")
                },
                "pages_s": ask_pages(folder, command, ["/", "/runs/1", f"/runs/1/tasks/{last}"]),
            }


def ask_pages(folder: str, command: list[str], paths: list[str]) -> dict[str, dict[str, float]]:
    """Seconds of the first answer of each page, and of the slowest of 50 at once."""
    with subprocess.Popen(
        [*command, "serve", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as server:
        address = server.stdout.readline().strip().rstrip("/")

        def ask(path: str) -> float:
            began = time.perf_counter()
            with urllib.request.urlopen(address + path) as answer:
                assert answer.read().rstrip().endswith(b"</html>")
            return time.perf_counter() - began

        found = {}
        with ThreadPoolExecutor(50) as clients:
            for path in paths:
                first = ask(path)
                slowest = max(clients.map(ask, [path] * 50))
                found[path] = {"first": round(first, 3), "slowest_of_50": round(slowest, 3)}
        server.terminate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    seconds = measure(args.trials, args.tasks)
    print(seconds)
    if args.out:
        document = {
            "script": "benchmarks/large_database.py",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "sqlite": sqlite3.sqlite_version,
            "trials": args.trials,
            "tasks": args.tasks,
            **seconds,
        }
        args.out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
