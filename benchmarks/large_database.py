#!/usr/bin/env python3
"""Nightly work over a database of many nights, against the same work over a few.

    benchmarks/large_database.py --trials 10000000 --nights 300 --out FILE.json

A campaign of 24 tasks on a CPU runs twice in an empty folder, and then everything that is nightly
is timed there. The second night, with more trials in each task, is then copied until so many nights
and trials are stored, and the same is timed again. Seconds: wall and processor time of each command
in a process of its own; pages of `tuner serve`, the first answer and the slowest of 50 clients that
ask at once; the trials of one task with their samples.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KERNEL = """
import torch
from tuner import Choice, Cost, Kernel, SearchSpace, TensorSpec, Tolerance, Workload

class Scale(Kernel):
    name = "scale"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=1000 + 16 * at) for at in range(24)]
    def make_inputs(self, workload, seed, device):
        source = None if device == "meta" else torch.Generator(device).manual_seed(seed)
        return {"x": torch.randn(workload.size("n"), generator=source, device=device)}
    def outputs(self, workload): return {"out": TensorSpec((workload.size("n"),), "float32")}
    def reference(self, workload, inputs): return {"out": inputs["x"].double() * 2.0}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(workload.size("n"), 8.0 * workload.size("n"))
    def space(self, workload):
        return SearchSpace([Choice("times", list(range(1, 13)))], [], kernel=self.name)
    def default_config(self, workload, device): return {"times": 6}
    def baselines(self, workload): return {"eager": lambda inputs: {"out": inputs["x"] * 2}}
    def cpu_callable(self, workload, config):
        def run(inputs):
            x = inputs["x"]
            for _ in range(config["times"]):
                x = x + 0.0
            return {"out": x * 2}
        return run
"""
CONFIG = """
version: 1
kernels: [own.py:Scale]
database: {url: 'sqlite:///tuner.db'}
measure: {final_pairs: 8, warm_ms: 1}
campaigns:
  nightly:
    budget: {trials: 8}
    tasks: [{kernel: scale}]
"""
#: What runs in a night and on the morning after it.
NIGHTLY = {
    "run": ["run", "nightly", "--no-report"],
    "report": ["report", "-o", "report.html"],
    "note": ["note"],
    "regressions": ["regressions"],
    "history": ["history", "scale"],
    "export": ["export", "-o", "out"],
    "status": ["status"],
    "best": ["best"],
    "runs": ["runs"],
    "prune --dry-run": ["prune", "--keep", "30", "--dry-run"],
}
CLIENTS = 50


class Nights:
    """A folder with a campaign and its database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "tuner.db"
        (folder / "own.py").write_text(KERNEL)
        (folder / "config.yaml").write_text(CONFIG)
        # Installed packages have byte code, also where this process may write none.
        self.environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
        self.environment["PYTHONPYCACHEPREFIX"] = f"{folder}/byte_code"
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def call(self, *words: str) -> dict[str, float]:
        """Seconds of a command, and of its processes."""
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            cwd=self.folder, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"tuner {' '.join(words)}: {done.stdout}{done.stderr}")
        return {"s": round(wall, 2), "cpu_s": round(sum(after[:2]) - sum(before[:2]), 2)}

    def measure(self) -> dict[str, Any]:
        """Of everything nightly: the median of three, a run of a night more each."""
        found: dict[str, Any] = {"file_mb": round(self.database.stat().st_size / 1e6)}
        for name, words in NIGHTLY.items():
            each = [self.call(*words) for _ in range(3)]
            found[name] = {of: statistics.median(one[of] for one in each) for of in each[0]}
            print(name, found[name], flush=True)
        found["pages_s"] = self.ask_pages()
        return found

    def ask_pages(self) -> dict[str, dict[str, float]]:
        """Seconds of the first answer of each page, and of the slowest of 50 at once."""
        with closing(sqlite3.connect(self.database)) as database:
            run, task = database.execute("select max(run_id), max(id) from task").fetchone()
        with subprocess.Popen(
            [sys.executable, "-m", "tuner", "serve", "--port", "0"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True,
        ) as server:  # fmt: skip
            assert server.stdout is not None
            address = server.stdout.readline().strip().rstrip("/")

            def ask(path: str) -> float:
                began = time.perf_counter()
                with urllib.request.urlopen(address + path) as answer:
                    assert answer.read().rstrip().endswith(b"</html>")
                return time.perf_counter() - began

            found = {}
            paths = {"/": "/", "/runs/N": f"/runs/{run}", "/runs/N/tasks/M": f"/runs/{run}/tasks/{task}"}  # noqa: E501  # fmt: skip
            with ThreadPoolExecutor(CLIENTS) as clients:
                for name, path in [*paths.items(), ("/note", "/note")]:
                    first = ask(path)
                    slowest = max(clients.map(ask, [path] * CLIENTS))
                    found[name] = {"first": round(first, 3), "slowest_of_50": round(slowest, 3)}
                    print(name, found[name], flush=True)
            server.terminate()
        return found

    def multiply(self, nights: int, trials: int) -> dict[str, int]:
        """Copy the last run until the database has these numbers of runs and trials."""
        with closing(sqlite3.connect(self.database)) as database:
            (run,) = database.execute("select max(id) from run").fetchone()
            (stored,) = database.execute(
                "select count(*) from trial join task on task.id = task_id where run_id = ?", (run,)
            ).fetchone()
            database.execute("pragma synchronous = off")
            self._add_trials(database, run, trials // nights // stored)
            for night in range(nights, 0, -1):
                self._copy_night(database, run, night)
            database.commit()
            names = ("run", "task", "trial")
            return {
                name: database.execute(f"select count(*) from {name}").fetchone()[0]
                for name in names
            }

    def _add_trials(self, database: sqlite3.Connection, run: int, times: int) -> None:
        """Further configs of each task: copies of its trials, a seventh of which has failed."""
        step = database.execute("select max(id) from trial").fetchone()[0]
        width = 1000
        own = f"task_id IN (SELECT id FROM task WHERE run_id = {run})"
        trials = f"SELECT id FROM trial WHERE {own}"
        many = f"""WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n
                   WHERE number < {times - 1}) INSERT INTO"""
        self._copy(database, "measurement", {"trial_id": f"trial_id + {step} * n.number"},
                   f"n, measurement WHERE trial_id IN ({trials})", many)  # fmt: skip
        self._copy(database, "trial", {
            "id": f"id + {step} * n.number", "number": f"trial.number + {width} * n.number",
            "attempt_id": "attempt_id || '-' || n.number",
            "config_hash": "substr(config_hash, 9) || printf('%08x', n.number)",
            "config": "json_set(config, '$.times', trial.number + n.number)",
            "status": "CASE n.number % 7 WHEN 0 THEN 'compile' ELSE status END",
        }, f"n, trial WHERE {own}", many)  # fmt: skip

    def _copy_night(self, database: sqlite3.Connection, run: int, night: int) -> None:
        """Copy a run; the copy began and ended this number of days earlier."""
        new = {}
        for table in ("run", "task", "trial", "baseline", "finalist", "selection"):
            new[table] = 1 + database.execute(f"select max(id) from {table}").fetchone()[0]
        times = ("started_at", "finished_at", "recorded_at", "confirmed_at", "heartbeat_at")
        earlier = {name: f"datetime({name}, '-{night} days')" for name in times}
        tasks = f"SELECT id FROM task WHERE run_id = {run}"
        trials = f"SELECT id FROM trial WHERE task_id IN ({tasks})"
        own, task = f"task_id IN ({tasks})", f"task_id + {new['task']}"
        self._copy(database, "run", earlier | {"id": f"id + {new['run']}", "tag": "NULL"}, f"run WHERE id = {run}")  # noqa: E501  # fmt: skip
        self._copy(database, "task", {"id": f"id + {new['task']}", "run_id": f"run_id + {new['run']}"}, f"task WHERE run_id = {run}")  # noqa: E501  # fmt: skip
        self._copy(database, "measurement", {"trial_id": f"trial_id + {new['trial']}"}, f"measurement WHERE trial_id IN ({trials})")  # noqa: E501  # fmt: skip
        for table in ("trial", "baseline", "finalist", "selection"):
            changed = earlier | {"id": f"id + {new[table]}", "task_id": task}
            changed["attempt_id"] = f"attempt_id || '/{night}'"
            self._copy(database, table, changed, f"{table} WHERE {own}")

    @staticmethod
    def _copy(
        database: sqlite3.Connection, table: str, new: dict[str, str], source: str,
        insert: str = "INSERT INTO",
    ) -> None:  # fmt: skip
        """Copy rows of a table; new: expressions of the columns that change."""
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(new.get(name, f"{table}.{name}") for name in names)
        database.execute(f"{insert} {table} ({', '.join(names)}) SELECT {values} FROM {source}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000_000)
    parser.add_argument("--nights", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "script": "benchmarks/large_database.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}",  # noqa: E501
        "sqlite": sqlite3.sqlite_version,
    }
    with tempfile.TemporaryDirectory(prefix="tuner-nights-") as folder:
        nights = Nights(Path(folder))
        for _ in range(2):
            nights.call("run", "nightly", "--no-report")
        document["few nights"] = nights.measure()
        document["rows"] = nights.multiply(options.nights, options.trials)
        print(document["rows"], flush=True)
        document["many nights"] = nights.measure()
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
