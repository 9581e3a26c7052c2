#!/usr/bin/env python3
"""Seconds from the start of a process to its confirmed answer and exit, and those of other tools.

    benchmarks/keypress_to_answer.py --out DIR/keypress_to_answer.json [--resume FILE]
        [--stop-after 520] [--wheels DIR] [--revision-path DIR] [--device cpu]

Each step is a new process with empty caches (keypress_process.py). The caches of the operating
system are warm: a first process, `rehearsal`, imports torch and opens the device, and counts in no
figure. Steps on a GPU:

- tuner: `python -c "tuner.tune(...)"` with budget `auto` and every baseline, once per seed, for
  matmul (the 336 configs that all tools search), layer_norm and attention;
- session: `tuner.session()`, a first `tune` of softmax, then the counted `tune`;
- campaign: `tuner run many` of multi_gpu.yaml, and the same campaign counted from warm workers
  (multi_gpu.py);
- triton, helion: the whole processes of triton_autotune_run.py and helion_run.py; of Helion its
  default search and its effort profile `quick`, with three seeds each;
- reference: the regrets of all choices of a kernel (reference_timing.py).

With `--device cpu`, `tuner run quickstart` and a `tune` of cpu_pointwise are measured instead.
`processor_s` of a step counts the processor time of all its processes, which other work on the
machine changes little. The document is written after every step. `--resume` skips the steps that a
document holds. With `--stop-after`, a step that would end later than that many seconds after the
start does not begin.
`--revision-path` measures the code of another checkout the same way; write it to another document.

    --only tuner session campaign triton helion reference    --kernel matmul layer_norm attention
    --seeds 10 --first-seed 1    --traces DIR (a trace of the first seed of each kernel)
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from keypress_process import ROOT, adopt_orphans, compiled_packages, processor_s, timed

sys.path.insert(0, f"{ROOT}")

HERE = Path(__file__).resolve().parent
#: The kernel and workload of each `tune`, and the task of its regrets in reference_timing.py.
CALLS = {
    "matmul": (
        f"{HERE / 'pointer_matmul.py'}:PointerMatmul",
        {"M": 4096, "N": 4096, "K": 4096, "dtype": "bfloat16"},
        "a",
    ),
    "layer_norm": ("layer_norm", {"rows": 65536, "cols": 768, "dtype": "bfloat16"}, "layer_norm"),
    "attention": (
        "attention",
        {
            "batch": 2,
            "heads": 32,
            "sequence": 8192,
            "head_dim": 128,
            "causal": True,
            "dtype": "bfloat16",
        },
        "attention",
    ),
}
FIRST_OF_SESSION = ("softmax", {"rows": 8192, "cols": 8192, "dtype": "bfloat16"})
SIDES = ("tuner", "session", "campaign", "triton", "helion", "reference")
CPU_STEPS = ("quickstart", "tune")
#: Seconds of a step, for --stop-after.
EXPECTED_S = {
    "rehearsal": 15,
    "tuner": 40,
    "session": 50,
    "campaign": 90,
    "triton": 230,
    "helion": 110,
    "reference": 90,
    "cpu": 140,
}
#: Seconds to reach: whole calls, second calls of a session, the campaign.
BOUND_S = {"matmul": 10.0, "layer_norm": 9.0, "attention": 18.0}
SESSION_BOUND_S = {"layer_norm": 4.0, "matmul": 6.0}
CAMPAIGN_BOUND_S, CAMPAIGN_MORE_S = 38.0, 8.0
FIRST_TRIAL_BOUND_S, CPU_TUNE_BOUND_S = 12.0, 25.0
#: Regret of nine in ten seeds, and how often a rival's process is as long as the median of ours.
REGRET, HELION, TRITON = 0.005, 6.0, 18.0
_LIMIT_S = 400.0

_FACTS = """
import json, os, platform, sys
import torch, triton
gpu = torch.cuda.is_available()
if gpu:
    torch.zeros(1, device="cuda")
models = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo")
          if line.startswith("model name")]
json.dump({"facts": {
    "device": torch.cuda.get_device_name() if gpu else (models or ["cpu"])[0],
    "card": f"{torch.cuda.get_device_properties(0).uuid}" if gpu else "",
    "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
    "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda or "",
}}, open(sys.argv[1], "w"))
"""
_TUNE = """
import json, sys
import tuner
kernel, workload, options = json.loads(sys.argv[1])
result = tuner.tune(kernel, workload, **options)
print(result)
answer = {"ships": result.ships, "median_us": result.median_us, "speedup": result.speedup,
          "verdict": result.verdict, "note": result.note, "device": result.device,
          "stage_s": dict(getattr(result, "stage_s", {}))}
json.dump(answer, open(sys.argv[2], "w"))
"""
_SESSION = """
import json, sys, time
import tuner
first, second, options = json.loads(sys.argv[1])
calls = []
with tuner.session() as session:
    for kernel, workload in (first, second):
        began = time.perf_counter()
        result = session.tune(kernel, workload, **options)
        calls.append({"s": round(time.perf_counter() - began, 3), "verdict": result.verdict,
                      "ships": result.ships, "stage_s": dict(result.stage_s)})
json.dump({"calls": calls, "verdict": calls[-1]["verdict"]}, open(sys.argv[2], "w"))
"""


# -- steps -----------------------------------------------------------------------------------------
def planned(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """The steps as tuples: what is run, and for which kernel and seed."""
    steps: list[tuple[str, ...]] = [("rehearsal",)]
    if args.device == "cpu":
        return [*steps, *(("cpu", name) for name in CPU_STEPS)]
    seeds = [f"{args.first_seed + index}" for index in range(args.seeds)]
    sessions = [name for name in args.kernel if name in SESSION_BOUND_S]
    of_side = {
        "tuner": [("tuner", name, seed) for name in args.kernel for seed in seeds],
        "session": [("session", name, seed) for name in sessions for seed in seeds[:3]],
        "campaign": [("campaign", "process"), ("campaign", "warm")],
        "triton": [("triton",)] if "matmul" in args.kernel else [],
        "helion": [
            ("helion", name, seed)
            for name in args.algorithms
            for seed in seeds[:3]
            if "matmul" in args.kernel
        ],
        "reference": [("reference", name) for name in args.kernel],
    }
    return steps + [step for side in args.only for step in of_side[side]]


def perform(step: tuple[str, ...], args: argparse.Namespace, done: Mapping[str, dict]) -> dict:
    """The document of one step."""
    side = step[0]
    if side == "rehearsal":
        return _run(args, "-c", _FACTS, "{folder}/answer.json")
    if side == "cpu":
        return _quickstart(args) if step[1] == "quickstart" else _cpu_tune(args)
    if side == "tuner":
        kernel, workload, _ = CALLS[step[1]]
        return _tune(args, kernel, workload, "auto", seed=int(step[2]), trace=_trace(args, step))
    if side == "session":
        calls = [FIRST_OF_SESSION, CALLS[step[1]][:2], {"budget": "auto", "seed": int(step[2])}]
        return _run(args, "-c", _SESSION, json.dumps(calls), "{folder}/answer.json")
    if side == "campaign":
        return _campaign(args) if step[1] == "process" else _warm_campaign(args)
    if side == "triton":
        return _rival(args, "triton_autotune_run.py", "--space", "a")
    if side == "helion":
        wheels = ("--wheels", f"{args.wheels.resolve()}") if args.wheels else ()
        search = ("--space", "a", "--algorithm", step[1], "--seed", step[2])
        return _rival(args, "helion_run.py", *search, *wheels)
    return _reference(args, step[1], done)


def _run(args: argparse.Namespace, *arguments: str, **options) -> dict:
    return timed(arguments, args.revision_path, **{"limit_s": _LIMIT_S, **options})


def _tune(
    args: argparse.Namespace, kernel: str, workload: dict, budget: object, *, seed: int, trace: str
) -> dict:
    options = {"budget": budget, "seed": seed, "database": "sqlite:///{folder}/tuner.db"}
    options |= {"trace": trace} if trace else {}
    call = json.dumps([kernel, workload, options])
    return _run(args, "-c", _TUNE, call, "{folder}/answer.json", database=True)


def _trace(args: argparse.Namespace, step: tuple[str, ...]) -> str:
    if args.traces is None or step[2] != f"{args.first_seed}":
        return ""
    args.traces.mkdir(parents=True, exist_ok=True)
    return f"{args.traces.resolve() / f'trace_{step[1]}.json'}"


def _settings_in_folder() -> dict[str, str]:
    """Settings that keep every result of `tuner run` in the folder of the process."""
    return {
        "TUNER__DATABASE__URL": "sqlite:///{folder}/tuner.db",
        "TUNER__PATHS__RESULTS": "{folder}/results",
        "TUNER__PATHS__TABLES": "{folder}/tables",
    }


def _campaign(args: argparse.Namespace) -> dict:
    config = args.revision_path / "benchmarks" / "multi_gpu.yaml"
    arguments = ("-m", "tuner", "run", "many", "--config", f"{config}")
    return _run(args, *arguments, environment=_settings_in_folder(), database=True)


def _warm_campaign(args: argparse.Namespace) -> dict:
    script = args.revision_path / "benchmarks" / "multi_gpu.py"
    found = _run(args, f"{script}", "--one", "1", "--out", "{folder}", answer="one.json")
    names = ("wall_s", "workers_up_s", "status", "trials", "usage", "whole_s", "gone_s", "problem")
    return {name: found[name] for name in names if name in found}


def _quickstart(args: argparse.Namespace) -> dict:
    config = args.revision_path / "config.yaml"
    arguments = ("-m", "tuner", "run", "quickstart", "--config", f"{config}")
    return _run(args, *arguments, environment=_settings_in_folder(), database=True)


def _cpu_tune(args: argparse.Namespace) -> dict:
    workload = {"rows": 64, "cols": 1024, "dtype": "float32", "tolerance": 0.01}
    return _tune(args, "cpu_pointwise", workload, 16, seed=0, trace="")


def _rival(args: argparse.Namespace, script: str, *arguments: str) -> dict:
    return _run(args, f"{HERE / script}", *arguments, "--out", "{folder}/answer.json")


def _reference(args: argparse.Namespace, name: str, done: Mapping[str, dict]) -> dict:
    choices = {key: _choice(entry) for key, entry in done.items() if _is_of(key, name)}
    choices = {key: choice for key, choice in choices.items() if choice}
    if not choices:
        raise RuntimeError(f"no step has a choice of {name}")
    path = args.out.with_suffix(".choices.json")
    path.write_text(json.dumps(choices))
    try:
        script = (
            "reference_timing.py",
            "--space",
            CALLS[name][2],
            "--choices",
            f"{path.resolve()}",
        )
        return _rival(args, *script)
    finally:
        path.unlink()


def _is_of(key: str, name: str) -> bool:
    """Whether a step chose a config of that kernel."""
    side, _, rest = key.partition("/")
    if side in ("triton", "helion"):
        return name == "matmul"
    return side in ("tuner", "session") and rest.partition("/")[0] == name


def _choice(entry: Mapping) -> dict | None:
    calls = entry.get("calls")
    return calls[-1]["ships"] if calls else entry.get("ships") or entry.get("winner")


# -- summary ---------------------------------------------------------------------------------------
def summary(done: Mapping[str, dict]) -> dict:
    """Seconds against their bounds, verdicts, regrets and the rivals' multiples of our median."""
    good = {key: entry for key, entry in done.items() if "problem" not in entry}
    found: dict = {name: _of_kernel(name, good) for name in CALLS}
    for name, bound_s in SESSION_BOUND_S.items():
        seconds = [e["calls"][-1]["s"] for k, e in good.items() if k.startswith(f"session/{name}/")]
        if seconds:
            found[f"second call of a session, {name}"] = _spread(seconds, bound_s)
    if "campaign/process" in good:
        found["campaign"] = _of_campaign(good)
    found |= {key: _of_cpu(good[key]) for key in ("cpu/quickstart", "cpu/tune") if key in good}
    return {name: line for name, line in found.items() if line}


def _of_kernel(name: str, good: Mapping[str, dict]) -> dict:
    calls = {key: entry for key, entry in good.items() if key.startswith(f"tuner/{name}/")}
    if not calls:
        return {}
    rows = good.get(f"reference/{name}", {}).get("entries", ())
    regret = {label: round(row["regret"], 5) for row in rows for label in row["labels"]}
    regrets = [regret[key] for key in calls if key in regret]
    verdicts = [entry["verdict"] for entry in calls.values()]
    whole = [entry["whole_s"] for entry in calls.values()]
    line = {
        **_spread(whole, BOUND_S[name]),
        "per_seed": {key.rpartition("/")[2]: entry["whole_s"] for key, entry in calls.items()},
        "first_trial_s": _median(entry.get("first_trial_s") for entry in calls.values()),
        "confirmed_s": _median(entry.get("confirmed_s") for entry in calls.values()),
        "exit_s": _median(
            entry["whole_s"] - entry["confirmed_s"]
            for entry in calls.values()
            if entry.get("confirmed_s")
        ),
        "confirmed_against": _timed_baselines(calls.values()),
        "trials": _median(entry.get("trials") for entry in calls.values()),
        "stage_s": _stages(calls.values()),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "one_verdict": len(set(verdicts)) == 1 and "undecided" not in verdicts,
    }
    if regrets:
        within = sum(value <= REGRET for value in regrets)
        line["worst_regret"], line["within_half_percent"] = max(regrets), within
        line["regret_reached"] = within >= 0.9 * len(regrets)
    middle = statistics.median(whole)
    for key, entry in good.items():
        if name == "matmul" and key.startswith(("triton", "helion")):
            times, bound = entry["whole_s"] / middle, TRITON if key == "triton" else HELION
            line[key] = {
                "whole_s": entry["whole_s"],
                "times_ours": round(times, 1),
                "regret": regret.get(key),
                "reached": times >= bound,
            }
    return line


def _timed_baselines(entries) -> list[str]:
    """The baselines that have a time in every call."""
    timed = [
        {row["name"] for row in entry.get("baselines", ()) if row["median_us"]} for entry in entries
    ]
    return sorted(set.intersection(*timed))


def _spread(seconds: Sequence[float], bound_s: float) -> dict:
    middle = statistics.median(seconds)
    return {
        "median_s": round(middle, 3),
        "max_s": round(max(seconds), 3),
        "calls": len(seconds),
        "bound_s": bound_s,
        "reached": middle <= bound_s,
        "all_reached": max(seconds) <= bound_s,
    }


def _median(values) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def _stages(entries) -> dict:
    """The median seconds of each stage, where the revision reports them."""
    listed = [entry.get("stage_s") or {} for entry in entries]
    names = dict.fromkeys(name for stages in listed for name in stages)
    return {name: _median(stages.get(name) for stages in listed) for name in names}


def _of_campaign(good: Mapping[str, dict]) -> dict:
    process, warm = good["campaign/process"], good.get("campaign/warm", {})
    line = {
        "whole_s": process["whole_s"],
        "verdicts": process.get("verdicts"),
        "trials": process.get("trials"),
        "from_warm_workers_s": warm.get("wall_s"),
        "bound_s": CAMPAIGN_BOUND_S,
        "bound_of_the_process_s": CAMPAIGN_BOUND_S + CAMPAIGN_MORE_S,
    }
    if warm.get("wall_s") is not None:
        line["reached"] = warm["wall_s"] <= CAMPAIGN_BOUND_S
        line["process_reached"] = process["whole_s"] <= warm["wall_s"] + CAMPAIGN_MORE_S
    return line


def _of_cpu(entry: Mapping) -> dict:
    names = ("whole_s", "gone_s", "processor_s", "first_trial_s", "last_trial_s")
    counts = ("trials", "failed", "verdicts")
    return {name: entry[name] for name in (*names, *counts) if name in entry}


# -- the run ---------------------------------------------------------------------------------------
def main() -> int:
    args = _arguments()
    # Ended by a signal, the script also ends the process that it measures.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    if args.byte_code == "as it is":
        return _measured(args, "as it is")
    with compiled_packages(args.revision_path) as made:
        return _measured(args, "made before the first step" if made else "of the installation")


def _measured(args: argparse.Namespace, byte_code: str) -> int:
    """Perform the planned steps. byte_code: the origin of the installed packages' byte code."""
    began = time.monotonic()
    document: dict = {"script": "benchmarks/keypress_to_answer.py", "steps": {}}
    for path in (args.out, args.resume):
        if path and path.exists():
            document = json.loads(path.read_text())
            break
    document["byte_code"] = byte_code
    done, left, failed = document["steps"], [], []
    for step in planned(args):
        key = "/".join(step)
        if key in done and "problem" not in done[key] and key != "rehearsal":
            continue
        if args.stop_after and time.monotonic() - began + EXPECTED_S[step[0]] > args.stop_after:
            left.append(key)
            continue
        before_s = processor_s()
        try:
            done[key] = perform(step, args, done)
        except Exception as error:
            done[key] = {"problem": f"{type(error).__name__}: {error}"}
        done[key]["processor_s"] = round(processor_s() - before_s, 1)
        failed += [key] if "problem" in done[key] else []
        done[key]["date"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        shown = ("whole_s", "verdict", "verdicts", "calls", "wall_s", "first_trial_s", "problem")
        print(key, {name: done[key][name] for name in shown if name in done[key]}, flush=True)
        _save(args, document)
    document["left"] = left
    _save(args, document)
    print(json.dumps(document["summary"], indent=1))
    print(f"remaining: {', '.join(left) or 'nothing'}; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


def _save(args: argparse.Namespace, document: dict) -> None:
    from matmul_tasks import write

    document["summary"] = summary(document["steps"])
    document["provenance"] = {
        **document["steps"].get("rehearsal", {}).get("facts", {}),
        "revision": args.revision or _revision(args.revision_path),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    write(args.out, document)


def _revision(folder: Path) -> str:
    from tuner.campaign.run_record import read_revision

    return read_revision(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="an earlier document; its steps are skipped")
    parser.add_argument("--stop-after", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--kernel", nargs="+", choices=list(CALLS), default=list(CALLS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--byte-code",
        choices=("made", "as it is"),
        default="made",
        help="whether to make byte code of installed packages where Python may write none",
    )
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--algorithms", nargs="+", default=["LFBOTreeSearch", "LFBOTreeSearch:quick"]
    )
    parser.add_argument("--wheels", type=Path, help="folder that holds Helion's wheel")
    parser.add_argument(
        "--traces", type=Path, help="folder for a trace of each kernel's first seed"
    )
    parser.add_argument(
        "--revision-path",
        type=Path,
        default=ROOT,
        help="the checkout whose code is measured; by default this one",
    )
    parser.add_argument("--revision", help="name of that revision; by default git's")
    args = parser.parse_args()
    args.revision_path = args.revision_path.resolve()
    return args


if __name__ == "__main__":
    sys.exit(main())
