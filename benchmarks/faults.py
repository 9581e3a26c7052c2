#!/usr/bin/env python3
"""Cost of faulty variants: hangs, crashes, spills, context corruption and wrong results.

    benchmarks/faults.py --out FILE.json

Tunes the kernel of faulty.py through the farm on this machine's GPU, in about three minutes. One
variant in eight is healthy; the others have one of seven faults. The document is written after
every part. Prints statuses, reasons and the seconds of device and wall time per variant for each
kind of fault, and whether a healthy variant won.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from faulty import FAULTS
from matmul_tasks import facts, write

import tuner
from search_spaces.records import Workload

HERE = Path(__file__).resolve().parent
#: Faults that kill the device process, and the number of variants with each fault.
DEADLY, EACH = ("hangs", "aborts", "illegal"), 3
WORKLOAD = Workload.of(n=1 << 22, dtype="float32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pool", default="local", choices=("local", "ray"))
    args = parser.parse_args()
    kernel = f"{HERE / 'faulty.py'}:FAULTY"
    started = time.monotonic()
    result = tuner.tune(
        kernel,
        WORKLOAD,
        budget={"search": 400},
        strategy="exhaustive",
        pool=args.pool,
        settings={"measure": {"baselines": ["eager"]}},
    )
    wall_s = time.monotonic() - started
    print(f"all variants: {wall_s:.1f} s", flush=True)
    healthy_s = campaign_s(kernel, args.pool, ["none"])
    print(f"healthy variants alone: {healthy_s:.1f} s", flush=True)
    trials = result.trials
    kinds = {fault: kind(trials[trials["config.fault"] == fault]) for fault in FAULTS}
    bad = sum(row["variants"] for fault, row in kinds.items() if fault != "none")
    document = {
        "script": "benchmarks/faults.py",
        "device": result.device,
        "toolchain": facts(),
        "wall_s": round(wall_s, 1),
        "healthy_alone_s": round(healthy_s, 1),
        "extra_s_per_faulty_variant": round((wall_s - healthy_s) / max(1, bad), 3),
        "winner": dict(result.winner or {}),
        "kinds": kinds,
    }
    write(args.out, document)
    extra_by_fault = document["extra_s_each_by_itself"] = {}
    for fault in DEADLY:
        extra_s = campaign_s(kernel, args.pool, ["none", fault]) - healthy_s
        extra_by_fault[fault] = round(extra_s / EACH, 3)
        write(args.out, document)
    for fault, row in kinds.items():
        print(fault, row)
    print(f"extra seconds of each fault alone: {extra_by_fault}")
    extra_s = document["extra_s_per_faulty_variant"]
    print(f"winner {document['winner']}; extra {extra_s} s per faulty variant")
    return 0 if (result.winner or {}).get("fault") in ("none", "spills") else 1


def campaign_s(kernel: str, pool: str, faults: list[str]) -> float:
    """Wall seconds of the same campaign over the variants with these faults alone."""
    from tuner.campaign import RunOptions, run_campaign
    from tuner.settings import validate

    task = {"kernel": kernel, "workloads": [WORKLOAD.as_dict()], "space": {"fault": faults}}
    with tempfile.TemporaryDirectory() as folder:
        settings = validate(
            {
                "database": {"url": f"sqlite:///{folder}/tuner.db"},
                "pool": {"kind": pool},
                "measure": {"baselines": ["eager"]},
                "campaigns": {
                    "healthy": {
                        "tasks": [task],
                        "targets": ["cuda"],
                        "budget": {"search": 400},
                        "strategy": {"name": "exhaustive"},
                    }
                },
            },
            lambda _: "faults.py",
        )
        options = RunOptions(report=False, export=False, base=Path(folder))
        started = time.monotonic()
        run_campaign(settings, "healthy", options=options)
        return time.monotonic() - started


def kind(rows) -> dict[str, object]:
    held = [float(value) for value in rows["device_s"]]
    return {
        "variants": len(rows),
        "statuses": dict(Counter(map(str, rows["status"]))),
        "device_s_median": round(statistics.median(held), 3) if held else None,
        "device_s_most": round(max(held), 3) if held else None,
        "reason": next((text for text in map(str, rows["message"]) if text), "")[:160],
    }


if __name__ == "__main__":
    raise SystemExit(main())
