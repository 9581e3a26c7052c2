"""A simulation: one campaign over 4 to 64 cards, in virtual time with build costs of an H200 host.

Synthetic spaces of `multi_gpu.py --simulate` with 15 builders per card; the engine and its
strategies are real. `driver_s`: processor seconds of the one driver, the simulation of the pool
among them. Usage:

    python benchmarks/virtual_cards.py --output FILE [--tasks 256] [--cards 4 8 64]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "benchmarks", "tests", "tests/plugins", "tests/engine")
sys.path[:0] = [str(ROOT / each) for each in FOLDERS]

import multi_gpu_run  # noqa: E402
from test_virtual_gpus import BUILDERS_PER_GPU, TRIALS, campaign  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--cards", type=int, nargs="+", default=[4, 8, 64])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = multi_gpu_run.make_tasks(Path(folder), options.tasks)
        for cards in options.cards:
            began = time.process_time()
            row = {"cards": cards, **asdict(campaign(paths, cards))}
            rows.append(row | {"driver_s": round(time.process_time() - began, 1)})
            print(rows[-1], flush=True)
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "tasks": options.tasks,
        "trials_per_task": TRIALS,
        "builders_per_card": BUILDERS_PER_GPU,
        "build_s": multi_gpu_run.BUILD_S,
        "rows": rows,
    }
    options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
