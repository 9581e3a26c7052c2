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
    found: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for file in sorted(TABLES.glob(f"*{options.device}*.json")):
        table = runtime.read(file)
        for entry in table.entries:
            runs, _ = pick(entry.implementation, entry.baselines)
            own = entry.baselines.get(runs, 1.0)
            for with_compile, kernels in found.items():
                others = [
                    ratio
                    for name, ratio in entry.baselines.items()
                    if with_compile or not name.startswith("compile")
                ]
                if others:
                    kernels[table.kernel].append(min(others) / own)
    result = {
        name: {
            **summarise([each for ratios in found[with_compile].values() for each in ratios]),
            "kernels": {kernel: summarise(each) for kernel, each in found[with_compile].items()},
        }
        for name, with_compile in (("over the fastest but compile", False), ("over all", True))
    }
    print(json.dumps({"device": options.device, **result}, indent=1))


if __name__ == "__main__":
    main()
