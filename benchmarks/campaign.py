#!/usr/bin/env python3
"""Run campaigns of a configuration and write their results with device, toolchain and date.

    benchmarks/campaign.py benchmarks/h200.yaml families --out DIR [--export space]

Writes DIR/<campaign>.json with one entry per task (winner, confirmed times, baselines, verdict, tie
set, trials by status, launches that compiled on the device). The database, the report and the
tables lie in DIR as well. Of an interrupted run, the file has the tasks as far as they are; with
--stored, nothing runs, and the file is written from the database in DIR.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from results_db import Store
from tuner import settings, tables
from tuner.campaign import RunOptions, run_campaign
from tuner.traces import record


class Watch:
    """Print a line every few seconds and keep the last progress."""

    def __init__(self):
        self.last, self.shown = None, 0.0

    def __call__(self, progress):
        self.last = progress
        if time.monotonic() - self.shown > 5:
            self.shown = time.monotonic()
            share = f"busy {progress.busy_share:.0%}, {progress.trials_per_s:.1f} trials/s"
            print(f"{progress.done}/{progress.total} {share}", file=sys.stderr, flush=True)


def ratio(log):
    return None if log is None else round(log.ratio, 4)


def verdict_over(baseline):
    """The verdict on the winner against a baseline; None for a baseline without a time."""
    if baseline.log_ratio is None:
        return None
    return (-baseline.log_ratio).verdict()


def task_entry(store, task):
    trials = store.trials(task.task_id)
    chosen = task.selection
    entry = {
        "kernel": task.key.kernel,
        "workload": task.key.workload.as_dict(),
        "space": task.key.space_hash,
        "trials": len(trials),
        "statuses": dict(sorted(Counter(t.status.value for t in trials).items())),
        "sources": dict(sorted(Counter(t.source for t in trials).items())),
        "binaries": len({t.binary_hash for t in trials if t.binary_hash}),
        "compiled_on_device": sum(t.compiled for t in trials),
        "device_s": round(sum(t.device_s for t in trials), 3),
        "build_s": round(sum(t.build_s for t in trials), 3),
        "note": task.note,
    }
    if chosen is None:
        return entry | {"winner": None}
    seconds = chosen.median_us / 1e6 if chosen.median_us else None
    return entry | {
        "winner": dict(chosen.winner),
        "verdict_against_default": chosen.verdict,
        "reason": chosen.reason,
        "tie_set": len(chosen.tie_set),
        "median_us": chosen.median_us,
        "gb_per_s": round(task.bytes / seconds / 1e9, 1) if seconds else None,
        "tflop_per_s": round(task.flops / seconds / 1e12, 2) if seconds else None,
        "speedup_over_default": ratio(chosen.log_ratio),
        "confirm_compiled": chosen.compiled,
        "clocks": dict(chosen.clocks),
        "speedup_over": {b.name: ratio(b.log_ratio) for b in task.baselines},
        "verdict_over": {b.name: verdict_over(b) for b in task.baselines},
        "baseline_us": {b.name: b.median_us for b in task.baselines},
        "baseline_problems": {b.name: b.message for b in task.baselines if b.message},
    }


def document(store, run_id, busy_share):
    """What the database knows about a run."""
    run, tasks = store.run(run_id), store.tasks(run_id)
    return {
        "script": "benchmarks/campaign.py",
        "campaign": run.campaign,
        "date": run.started_at.strftime("%Y-%m-%d"),
        "finished": run.finished_at.isoformat(timespec="seconds") if run.finished_at else None,
        "devices": sorted({t.key.device.name for t in tasks}),
        "toolchain": asdict(tasks[0].key.toolchain) if tasks else {},
        "calibrations": [asdict(item.calibration) for item in store.calibrations()],
        "environment": dict(run.environment),
        "wall_s": round((run.finished_at - run.started_at).total_seconds(), 1)
        if run.finished_at
        else None,
        "device_busy_share": busy_share,
        "status": run.status,
        "summary": run.summary.get("summary", ""),
        "tasks": [task_entry(store, task) for task in tasks],
    }


def write(store, run_id, path, busy_share=None):
    """Write the document of a run and print its tasks."""
    found = document(store, run_id, busy_share)
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    for task in found["tasks"]:
        print(found["campaign"], task["workload"], task.get("median_us"), task.get("speedup_over"))
        print("    ", task.get("verdict_over"))
    print(f"{found['campaign']}: {found['summary']} in {found['wall_s']} s -> {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("campaigns", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--stored", action="store_true", help="run nothing, read the database")
    parser.add_argument("--export", help="also export each campaign in this format")
    parser.add_argument("--trace", action="store_true", help="write DIR/<campaign>.trace.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    overrides = {
        "database": {"url": f"sqlite:///{args.out.resolve()}/tuner.db"},
        "paths": {"results": str(args.out.resolve()), "tables": str(args.out.resolve() / "tables")},
    }
    loaded, base = settings.load(args.config, overrides)
    for name in args.campaigns:
        path, watch, run_id = args.out / f"{name}.json", Watch(), None
        try:
            if not args.stored:
                options = RunOptions(fresh=args.fresh, base=base)
                with record(args.out / f"{name}.trace.json" if args.trace else None, name):
                    run_id = run_campaign(loaded, name, options=options, on_progress=watch).run_id
        finally:
            with Store.open(loaded.database.url) as store:
                found = run_id or max(r.run_id for r in store.runs() if r.campaign == name)
                busy = round(watch.last.busy_share, 3) if watch.last else None
                write(store, found, path, busy)
        if args.export:
            with Store.open(loaded.database.url) as store:
                tables.export(store, found, args.out / args.export, args.export)


if __name__ == "__main__":
    main()
