"""The 32-task campaign from Enter to the prompt: one card and two, child processes and Ray.

Each run is `tuner run many` of multi_gpu.yaml in an empty folder with empty caches, on the
processors of the whole host. Busy shares are those of the run's summary: device seconds over the
seconds in which devices were ready. Usage:

    python benchmarks/enter_to_prompt.py --out OUT [--pools ray local] [--cards 1 2] [--repeats 1]

Writes OUT/enter_to_prompt.json, and a trace of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
CONFIG = ROOT / "benchmarks" / "multi_gpu.yaml"


def run(pool: str, cards: int, trace: Path) -> dict[str, Any]:
    """One run: seconds from Enter to the prompt, and what its summary says."""
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG.read_text().replace("kind: local", f"kind: {pool}")
        (Path(folder) / "config.yaml").write_text(config)
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(cards))),
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "XDG_CACHE_HOME": f"{folder}/cache",
        }
        command = [sys.executable, "-m", "tuner", "run", "many", "--trace", str(trace)]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        seconds = time.monotonic() - began
        found = {"pool": pool, "cards": cards, "seconds": round(seconds, 2), "rc": done.returncode}
        with sqlite3.connect(f"{folder}/tuner.db") as database:
            rows = database.execute("select summary from run").fetchall()
        lines = done.stdout.strip().splitlines()[-1:] + done.stderr.strip().splitlines()[-1:]
        said = [line for line in lines if not line.startswith("trace: ")]
        return found | json.loads(rows[-1][0] or "{}") | {"said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pools", nargs="+", default=["ray", "local"], choices=("ray", "local"))
    parser.add_argument("--cards", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    from matmul_tasks import facts

    runs: list[dict[str, Any]] = []
    document = {"toolchain": facts(), "processors": os.cpu_count(), "runs": runs}
    for repeat in range(options.repeats):
        for pool in options.pools:
            for cards in options.cards:
                trace = options.out.resolve() / f"{pool}-{cards}-{repeat}.json"
                runs.append(run(pool, cards, trace))
                print(json.dumps(runs[-1]), flush=True)
                for each in options.pools:
                    own = {r["cards"]: r["seconds"] for r in runs if r["pool"] == each}
                    if {1, 2} <= own.keys():
                        document[f"{each}: one card over two"] = round(own[1] / own[2], 3)
                (options.out / "enter_to_prompt.json").write_text(
                    json.dumps(document, indent=1) + "\n"
                )


if __name__ == "__main__":
    main()
