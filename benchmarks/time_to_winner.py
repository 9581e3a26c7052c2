#!/usr/bin/env python3
"""Tuning time and regret of tuner, triton.autotune and Helion on the same configs.

    benchmarks/time_to_winner.py --out DIR/time_to_winner.json [--resume FILE] [--stop-after 520]

Every tool tunes the same pointer matmul over the same list of configs (matmul_tasks.py), with cold
caches, on the same cores, in its own process. One long interleaved comparison of all choices and of
the best configs (reference_timing.py) then gives the regret of each. The steps of a space run in
this order: tuner for every seed, triton.autotune, Helion's algorithms, the reference timing. The
document is written after every step. `--resume` skips the steps that a document holds. With
`--stop-after`, a step that would end later than that many seconds after the start does not begin.

    --only tuner triton helion reference    --space a b    --seeds 10
    --strategy bayes --trials auto     --recorded FILE (tuner alone, replayed, without a GPU)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from matmul_tasks import TASKS, write

HERE = Path(__file__).resolve().parent
SIDES = ("tuner", "triton", "helion", "reference")
#: Seconds of a step on an H200 with 16 cores, for --stop-after.
EXPECTED_S = {"tuner": 40, "triton": 220, "helion": 110, "reference": 75}
#: Bounds of the design: regret, and speed-ups over Helion and triton.autotune.
BOUND_S = {"a": 6.0, "b": 4.0}
REGRET, HELION, TRITON = 0.005, 8.0, 20.0


def options_of(args) -> dict:
    """The options of tuner's runs, as far as this version supports them."""
    from tuner import strategies
    from tuner.settings.sections import Budget

    if args.recorded and args.only != ["tuner"]:
        raise SystemExit("only tuner can be replayed; add: --only tuner --space a")
    strategy = args.strategy or ("bayes" if "bayes" in strategies.names() else "tpe")
    trials: object = args.trials
    if trials == "auto":
        try:
            Budget(trials="auto")
        except ValueError:
            trials = 120
    trials = trials if trials == "auto" else int(trials)
    return {
        "strategy": strategy,
        "strategy_options": json.loads(args.options),
        "trials": trials,
        "polish": args.polish,
        "baselines": args.baselines,
        "recorded": args.recorded,
    }


# -- steps -----------------------------------------------------------------------------------------
def planned(args) -> list[tuple[str, str, str]]:
    """The steps as (space, tool, variant); the variant is a seed, an algorithm, or empty."""
    steps = []
    for space in args.space:
        which = {
            "tuner": [str(args.first_seed + index) for index in range(args.seeds)],
            "triton": [""],
            "helion": args.algorithms,
            "reference": [""],
        }
        steps += [(space, side, variant) for side in args.only for variant in which[side]]
    return steps


def perform(step, args, done: dict) -> dict:
    space, side, which = step
    if side == "tuner":
        from tuner_run import tune_once

        return tune_once(TASKS[space], int(which), options_of(args))
    if side == "triton":
        return _script("triton_autotune_run.py", "--space", space)
    if side == "helion":
        wheels = ("--wheels", f"{args.wheels}") if args.wheels else ()
        return _script("helion_run.py", "--space", space, "--algorithm", which, *wheels)
    choices = {
        key: entry["winner"]
        for key, entry in done.items()
        if key.startswith(f"{space}/") and entry.get("winner")
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "choices.json"
        path.write_text(json.dumps(choices))
        return _script("reference_timing.py", "--space", space, "--choices", f"{path}")


def _script(name: str, *arguments: str) -> dict:
    """Run one of the scripts of this folder in its own process and read its document."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, f"{HERE / name}", *arguments, "--out", f"{out}"]
        environment = {**os.environ, "PYTHONPATH": _python_path()}
        log = Path(folder) / "log"
        with log.open("w") as sink:
            ended = subprocess.run(command, stdout=sink, stderr=sink, env=environment, check=False)
        if ended.returncode or not out.exists():
            tail = log.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{name} ended with {ended.returncode}: {tail}")
        return json.loads(out.read_text())


def _python_path() -> str:
    return os.pathsep.join([f"{HERE.parent}", os.environ.get("PYTHONPATH", "")])


# -- summary ------------------------------------------------------------------------------
def summary(done: dict) -> dict:
    """Per space: tuner's times, every tool's regret, and the other tools' times as multiples of
    tuner's.
    """
    return {space: line for space in TASKS if (line := _summary(space, done))}


def _summary(space: str, done: dict) -> dict:
    searches = {key: e for key, e in done.items() if key.startswith(f"{space}/tuner/")}
    others = {
        key.partition("/")[2]: e
        for key, e in done.items()
        if key.startswith((f"{space}/triton", f"{space}/helion")) and e.get("winner")
    }
    regret = _regrets(done.get(f"{space}/reference", {}))
    known = [e["wall_s"] for e in searches.values() if e.get("wall_s") and e.get("winner")]
    line: dict = {}
    if searches:
        line["tuner"] = _tuner(space, searches, regret)
    for name, entry in others.items():
        row = {key: entry.get(key) for key in ("seconds", "search_s", "configs", "version")}
        row["regret"] = regret.get(f"{space}/{name}")
        if known:
            middle = statistics.median(known)
            row["times_tuner"] = round(entry["seconds"] / middle, 1)
            row["times_our_slowest"] = round(entry["seconds"] / max(known), 1)
            if entry.get("search_s"):
                row["search_times_tuner"] = round(entry["search_s"] / middle, 1)
        line[name] = {key: value for key, value in row.items() if value is not None}
    if known and others and regret:
        line["reached"] = _reached(space, known, line)
    return line


def _regrets(reference: dict) -> dict:
    rows = reference.get("entries", ())
    return {label: round(row["regret"], 5) for row in rows for label in row["labels"]}


def _tuner(space: str, searches: dict, regret: dict) -> dict:
    def spread(name):
        values = [e[name] for e in searches.values() if e.get(name) is not None]
        if not values:
            return None
        return {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}

    seen = [regret[key] for key in searches if key in regret]
    return {
        "seeds": len(searches),
        "without_a_winner": sum(not e.get("winner") for e in searches.values()),
        "winner_known_s": spread("wall_s"),
        "confirmed_s": spread("confirmed_s"),
        "trials": spread("trials"),
        "gpu_ms_per_config": spread("gpu_ms_per_config"),
        "busy": spread("busy"),
        "workers_up_s": spread("workers_up_s"),
        "per_seed": {
            e["seed"]: [e.get("wall_s"), e.get("confirmed_s"), e.get("trials"), regret.get(key)]
            for key, e in searches.items()
            if "seed" in e
        },
        "worst_regret": max(seen, default=None),
        "within_half_percent": sum(value <= REGRET for value in seen),
        "wanted_s": BOUND_S[space],
    }


def _reached(space: str, known, line: dict) -> dict:
    tuner = line["tuner"]
    confirmed = tuner["confirmed_s"] or {"max": math.inf}

    def faster_than(name, times):
        """None if that tool was not run."""
        rows = [row["times_tuner"] for key, row in line.items() if key.startswith(name)]
        return min(rows) >= times if rows else None

    return {
        "in_time": max(known) <= BOUND_S[space],
        "median_in_time": statistics.median(known) <= BOUND_S[space],
        "confirmed_in_time": confirmed["max"] <= BOUND_S[space],
        "regret": tuner["within_half_percent"] >= math.ceil(0.9 * tuner["seeds"]),
        "faster_than_helion": faster_than("helion", HELION),
        "faster_than_triton": faster_than("triton", TRITON),
    }


def provenance(done: dict) -> dict:
    """Device, cards and toolchain of all steps: lists, of length 1 where all steps agree."""
    from tuner.campaign.run_facts import read_revision

    seen: dict[str, set] = {}
    for entry in done.values():
        known = {**entry.get("facts", {}), **entry.get("toolchain", {})}
        known["device"] = entry.get("device") or known.get("device")
        cards = entry.get("card") or [known.pop("card", "")]
        known["cards"] = [card.removeprefix("GPU-") for card in cards]
        for name, value in known.items():
            seen.setdefault(name, set()).update(value if isinstance(value, list) else [value])
    listed = {name: sorted(filter(None, map(str, values))) for name, values in seen.items()}
    listed.pop("card", None)
    return {
        **listed,
        "revision": read_revision(HERE),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


# -- the run ---------------------------------------------------------------------------------------
def main():
    args = _arguments()
    began = time.monotonic()
    document = {"script": "benchmarks/time_to_winner.py", "steps": {}}
    for path in (args.out, args.resume):
        if path and path.exists():
            document = json.loads(path.read_text())
            break
    done, left, failed = document["steps"], [], []
    for step in planned(args):
        key = "/".join(part for part in step if part)
        if key in done and "problem" not in done[key]:
            continue
        if args.stop_after and time.monotonic() - began + EXPECTED_S[step[1]] > args.stop_after:
            left.append(key)
            continue
        started = time.monotonic()
        try:
            done[key] = perform(step, args, done)
        except Exception as error:
            traceback.print_exc()
            done[key] = {"problem": f"{type(error).__name__}: {error}"}
            failed.append(key)
        done[key]["step_s"] = round(time.monotonic() - started, 1)
        done[key]["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        _report(key, done[key])
        _save(args, document)
    document["left"] = left
    _save(args, document)
    print(json.dumps(document["summary"], indent=1))
    print(f"remaining: {', '.join(left) or 'nothing'}; failed: {', '.join(failed) or 'nothing'}")
    sys.exit(1 if failed else 0)


def _save(args, document: dict) -> None:
    document["summary"] = summary(document["steps"])
    document["provenance"] = provenance(document["steps"])
    document["options"] = options_of(args)
    write(args.out, document)


def _report(key: str, entry: dict) -> None:
    names = ("wall_s", "confirmed_s", "seconds", "search_s", "configs", "trials", "problem")
    shown = {n: entry[n] for n in names if not isinstance(entry.get(n), dict | type(None))}
    print(f"{key}: {shown} (step {entry['step_s']} s)", flush=True)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="an earlier document; its steps are skipped")
    parser.add_argument("--stop-after", type=float, default=0.0, help="seconds")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--space", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--strategy", help="default: bayes if this version has it, else tpe")
    parser.add_argument("--options", default="{}", help="options of the strategy, as JSON")
    parser.add_argument("--trials", default="auto", help="trials per search: a number, or auto")
    parser.add_argument("--polish", type=int, default=0)
    parser.add_argument(
        "--baselines", nargs="*", default=["vendor"], help="baselines of the confirmation"
    )
    parser.add_argument("--recorded", help="recorded space that tuner replays")
    parser.add_argument("--algorithms", nargs="+", default=["PatternSearch", "LFBOPatternSearch"])
    parser.add_argument("--wheels", type=Path, help="folder that holds Helion's wheel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
