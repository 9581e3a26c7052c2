"""What the shipped tables of tuner.ops say of their own workloads, by the confirmations they hold.

For each workload: the time of the fastest baseline over that of the implementation that a call
runs, with `torch.compile` among the baselines and without it. A call never runs `compile`; where
that is the fastest, the next one counts as what runs. No GPU is needed.

    python benchmarks/ops_tables.py H100 > results/h100/ops_tables.json
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tuner import runtime
from tuner.ops.choosing import pick

TABLES = Path(__file__).resolve().parent.parent / "tuner" / "tables"


def summarise(ratios: list[float]) -> dict[str, Any]:
    return {
        "workloads": len(ratios),
        "geometric mean": round(geometric_mean(ratios), 4),
        "at least 0.99": round(sum(each >= 0.99 for each in ratios) / len(ratios), 4),
        "least": round(min(ratios), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", help="a part of the tables' file names, such as H100")
    options = parser.parse_args()
    but_compile: dict[str, list[float]] = defaultdict(list)
    over_all: dict[str, list[float]] = defaultdict(list)
    for file in sorted(TABLES.glob(f"*{options.device}*.json")):
        table = runtime.read(file)
        for entry in table.entries:
            runs, gain = pick(entry.implementation, entry.baselines)
            if gain is not None:
                but_compile[table.kernel].append(gain)
            if entry.baselines:
                fastest = min(entry.baselines.values())
                over_all[table.kernel].append(fastest / entry.baselines.get(runs, 1.0))
    result = {
        name: {
            **summarise([each for ratios in kernels.values() for each in ratios]),
            "kernels": {kernel: summarise(each) for kernel, each in kernels.items()},
        }
        for name, kernels in (
            ("over the fastest but compile", but_compile),
            ("over all", over_all),
        )
    }
    print(json.dumps({"device": options.device, **result}, indent=1))


if __name__ == "__main__":
    main()
