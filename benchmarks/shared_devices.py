"""Campaigns that share the GPUs of one host: overlaps of their jobs, and seconds of each campaign.

Several `tuner run many` begin together, each with half of the trials of multi_gpu.yaml on two
workloads of each family, its own folder and its own database. Device jobs are read from their
traces. Usage:

    python benchmarks/shared_devices.py --out OUT [--priorities 0 0 1] [--ray CARDS]

`--ray CARDS` starts a cluster with CARDS GPUs. The campaigns are its drivers and reserve nothing.
The script prints and writes the seconds until the prompt and the device seconds of each campaign,
and the longest overlap of two jobs on one device. It exits with 1 if a campaign fails, or if jobs
overlap by more than the clocks of the traces may differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / each) for each in (".", "benchmarks", "tests/tracing")]

from trace_reader import Trace  # noqa: E402

_TRIALS, _WORKLOADS = 20, 2
#: By how much the beginnings of two traces may be off.
_CLOCK_S = 0.005


@contextmanager
def cluster(cards: int):
    """The settings of drivers of a cluster that exists during the block; none without cards."""
    if not cards:
        yield {}
        return
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    words = ["start", "--head", f"--num-gpus={cards}", "--disable-usage-stats"]
    subprocess.run([*ray, *words], check=True, capture_output=True)
    try:
        yield {
            "TUNER__POOL__KIND": "ray",
            "TUNER__POOL__ADDRESS": "auto",
            "TUNER__POOL__RESERVE": "false",
            "TUNER__POOL__BUILDERS": "4",
        }
    finally:
        subprocess.run([*ray, "stop", "--force"], capture_output=True, check=False)


def begin(folder: Path, number: int, priority: int, settings: dict[str, str]) -> subprocess.Popen:
    """Start one campaign in a folder of its own."""
    config = yaml.safe_load((ROOT / "benchmarks" / "multi_gpu.yaml").read_text())
    many = config["campaigns"]["many"]
    many["budget"]["trials"], many["priority"] = _TRIALS, priority
    for entry in many["tasks"]:
        first = _WORKLOADS * number
        entry["workloads"] = entry["workloads"][first : first + _WORKLOADS]
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "tuner", "run", "many", "--trace", "trace.json"]
    with (folder / "said").open("w") as said:
        env = os.environ | settings
        return subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)


def list_jobs(trace: Path) -> list[tuple[str, float, float]]:
    """The jobs of a trace that used a device: its name, and their begin and end in seconds."""
    read = Trace(trace)
    began = datetime.fromisoformat(read.document["otherData"]["started_at"]).timestamp()
    jobs = []
    for span in read.spans:
        if span["cat"] == "job" and span["args"].get("candidates"):
            at = began + span["ts"] / 1e6
            device = read.processes[span["pid"]].split()[0]
            jobs.append((device, at, at + span["dur"] / 1e6))
    return jobs


def longest_overlap(jobs: list[list[tuple[str, float, float]]]) -> float:
    """Seconds for which jobs of two campaigns were on one device at a time, of the worst pair."""
    spans: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for number, of_one in enumerate(jobs):
        for device, begin_s, end_s in of_one:
            spans[device].append((begin_s, end_s, number))
    worst = 0.0
    for held in spans.values():
        for one, other in itertools.combinations(sorted(held), 2):
            if one[2] != other[2]:
                worst = max(worst, min(one[1], other[1]) - other[0])
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--priorities", nargs="+", type=int, default=[0, 0, 1])
    parser.add_argument("--ray", type=int, default=0, metavar="CARDS")
    options = parser.parse_args()
    from matmul_tasks import facts

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as root, cluster(options.ray) as settings:
        started = time.monotonic()
        folders = [Path(root) / f"{number}" for number in range(len(options.priorities))]
        begun = [
            begin(folder, number, priority, settings)
            for number, (folder, priority) in enumerate(
                zip(folders, options.priorities, strict=True)
            )
        ]
        ended: dict[int, float] = {}
        while len(ended) < len(begun):
            time.sleep(0.05)
            for number, process in enumerate(begun):
                if number not in ended and process.poll() is not None:
                    ended[number] = time.monotonic() - started
        jobs = []
        for number, folder in enumerate(folders):
            said = (folder / "said").read_text().splitlines()
            jobs.append(list_jobs(folder / "trace.json") if not begun[number].returncode else [])
            row = {
                "priority": options.priorities[number],
                "rc": begun[number].returncode,
                "seconds": round(ended[number], 1),
                "jobs": len(jobs[-1]),
                "device_s": round(sum(end_s - at for _, at, end_s in jobs[-1]), 1),
                "said": [line for line in said if " trials (" in line or "error" in line][-2:],
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    overlap = longest_overlap(jobs)
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "toolchain": facts(),
        "ray_cards": options.ray,
        "campaigns": rows,
        "longest_overlap_s": round(overlap, 4),
    }
    print("longest overlap:", found["longest_overlap_s"], "s", flush=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(row["rc"] for row in rows) or overlap > _CLOCK_S)


if __name__ == "__main__":
    main()
