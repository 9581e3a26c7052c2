#!/usr/bin/env python3
"""Regret of tuner's searches against exhaustive rankings of whole spaces; also records the spaces.

    benchmarks/selection_regret.py --out DIR [--resume FILE] [--stop-after 420] [--spaces NAME ...]

For every space of a configuration, the farm's builders build all configs, ahead of the device. Two
independent exhaustive rankings (exhaustive.py) time all configs, interleaved. Each seed then tunes
the space with the real engine, driver, store and device runner; its builds are replayed
(replayed_farm.py).

The regret of a search, by the mean of both rankings, has two parts: exploration (the best config
that it tried against the best) and selection (its choice against the best that it tried). The noise
floor is the regret of one ranking's best config in the other ranking; a smaller regret counts as
zero.

DIR/selection_regret.json is written after every space, and DIR/spaces.tar.gz holds the spaces as
`tuner-space/1` files. Spaces in the document that --resume names are skipped. With --stop-after, a
space that would end later does not begin.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import time
import traceback
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from exhaustive import ExhaustiveRanking, RankingJob
from matmul_tasks import write
from rankings import Ranked, agreement, merged, ranked, regret
from recordings import RankingPair, baselines_us, noise, of_twins, recording
from regret_figures import figures, line, summary
from replayed_farm import ROOT, Farm, search

from search_spaces.records import Device, config_key
from tuner import settings
from tuner.campaign import run_facts
from tuner.campaign.tasks import RequestedTask, requested_tasks
from workers.job_records import Artifact, Failure, KernelRef

HERE = Path(__file__).resolve().parent
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: Initial estimate of the seconds of a space: per config and per seed.
_CONFIG_S, _SEED_S = 0.06, 4.0
#: The baseline `compile` is left out: torch.compile would take longer than the ranking.
_BASELINES = ("eager", "vendor")


def space_name(kernel: str, dims: dict) -> str:
    """Name of a space, e.g. `matmul_4096x4096x4096_bf16`: sizes, then true flags, then dtypes."""
    sizes = "x".join(f"{v}" for v in dims.values() if type(v) is int)
    flags = [name for name, value in dims.items() if value is True]
    dtypes = [_SHORT.get(v, v) for v in dims.values() if isinstance(v, str)]
    return "_".join([kernel, sizes, *flags, *dtypes])


def spaces_of(campaign) -> dict[str, RequestedTask]:
    """The campaign's tasks by space name, in their order."""
    spaces = {}
    for task in requested_tasks(campaign):
        (dims,) = task.config.workloads
        spaces[space_name(task.kernel.name, dims)] = task
    return spaces


# -- one space -------------------------------------------------------------------------------------
def measure_space(name, task: RequestedTask, farm: Farm, rankings, device: Device, args) -> dict:
    """Rank, search and record a space that is built."""
    started = time.monotonic()
    builds, farm_s = farm.built[name], farm.build_wall_s[name]
    default = task.kernel.default_config(task.workload, device)
    measured = _measured(rankings, _ranking_job(task, builds, default, args))
    a, b = (_only_right(ranked(stages), measured.failures) for stages in measured.stages)
    both = merged(a, b)
    ranking_s = time.monotonic() - started
    entry = {
        "kernel": task.kernel.name,
        "workload": task.workload.as_dict(),
        **_ranking_facts(measured, builds, both, default),
        "agreement": {key: round(value, 6) for key, value in agreement(a, b).items()},
        "oracle_s": round(ranking_s, 1),
        "build_wall_s": round(farm_s, 1),
        "build_cpu_s": round(sum(r.build_s for r in builds.values()), 1),
        "searches": [],
    }
    path = args.recordings / f"{name}.space.json"
    recording(task, device, farm, builds, measured, both, default).save(path)
    entry["recording_bytes"] = path.stat().st_size
    times = of_twins(builds, both.times_us)
    floor = entry["agreement"]["floor"]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        entry["searches"].append(_search_entry(name, task, farm, seed, times, floor, args))
    entry["figures"] = figures(entry["searches"])
    entry["wall_s"] = round(time.monotonic() - started, 1)
    return entry


def _ranking_job(task: RequestedTask, builds, default, args) -> RankingJob:
    """The ranking job with one artifact per binary, the default's first."""
    first = config_key(default)
    keys = sorted(builds, key=lambda key: key != first)
    distinct = {}
    for key in keys:
        if isinstance(builds[key], Artifact):
            distinct.setdefault(builds[key].binary_hash, builds[key])
    known = task.kernel.baselines(task.workload)
    return RankingJob(
        KernelRef(task.kernel.spec, (f"{ROOT}",)),
        task.workload,
        tuple(distinct.values()),
        args.settings.measure.make_protocol(),
        passes=args.passes,
        top_passes=args.top_passes,
        baselines=tuple(name for name in _BASELINES if name in known),
    )


def _measured(rankings: dict[str, ExhaustiveRanking], job: RankingJob) -> RankingPair:
    a, b = (
        ranking.measure(replace(job, seed=name, baselines=job.baselines if name == "A" else ()))
        for name, ranking in rankings.items()
    )
    if not (a.stages and b.stages):
        raise RuntimeError("no config passed the gate")
    return RankingPair(
        stages=(a.stages, b.stages),
        failures={**a.failures, **b.failures},
        disagreed=sorted(set(a.failures) ^ set(b.failures)),
        baselines=a.baselines,
        baseline_problems=a.baseline_problems,
        methods=sorted({a.method, b.method}),
        gate_s=a.gate_s + b.gate_s,
        timing_s=a.timing_s + b.timing_s,
    )


def _only_right(ranked_configs: Ranked, failures) -> Ranked:
    """The ranking without configs that failed in either ranking."""
    right = {n: t for n, t in ranked_configs.times_us.items() if n not in failures}
    return replace(ranked_configs, times_us=right)


def _ranking_facts(measured: RankingPair, builds, both: Ranked, default) -> dict:
    times = of_twins(builds, both.times_us)
    best_us, at = times[both.best], config_key(default)
    counts = [len(stage.samples) for stage in measured.stages[0]]
    failures = [
        *measured.failures.values(),
        *(r for r in builds.values() if isinstance(r, Failure)),
    ]
    statuses = sorted(failure.status.value for failure in failures)
    return {
        "configs": len(builds),
        "binaries": counts[0],
        "top": counts[1],
        "failures": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "best": dict(builds[both.best].config),
        "best_us": round(best_us, 4),
        "default_regret": round(times[at] / best_us - 1, 5) if at in times else None,
        "baselines_us": {n: round(v, 4) for n, v in baselines_us(measured, both).items()},
        "baseline_problems": measured.baseline_problems,
        "disagreed": measured.disagreed,
        "methods": measured.methods,
        "gate_s": round(measured.gate_s, 1),
        "timing_s": round(measured.timing_s, 1),
        "noise": asdict(noise(measured, both)),
    }


def _search_entry(name, task, farm, seed, times, floor, args) -> dict:
    try:
        run = search(farm, name, task, seed, args.options)
    except Exception as error:
        traceback.print_exc()
        return {"seed": seed, "problem": f"{type(error).__name__}: {error}"}
    tried = {config_key(config) for config in run.pop("tried")}
    run["tried"] = len(tried)
    chosen = config_key(run["chosen"]) if run["chosen"] else ""
    if chosen not in times:
        return run | {
            "problem": "no config was chosen"
            if not chosen
            else "the ranking has no time for its choice"
        }
    parts = regret(times, tried, chosen, floor)
    return run | {key: round(value, 6) for key, value in parts.items()}


# -- the run ---------------------------------------------------------------------------------------
def main():
    args = _arguments()
    began = time.monotonic()
    document = _document(args)
    args.settings, _ = settings.load(args.config, {})
    spaces = spaces_of(args.settings.campaigns[args.campaign])
    unknown = sorted(set(args.spaces or spaces) - set(spaces))
    if unknown:
        raise SystemExit(f"no spaces {', '.join(unknown)}; spaces: {', '.join(spaces)}")
    done = document["spaces"]
    todo = [n for n in args.spaces or spaces if n not in done or "problem" in done[n]]
    kind = next(iter(spaces.values())).targets[0].partition(":")[0]
    args.recordings = args.out / "recordings" if args.keep else Path(f"{args.out}.recordings")
    args.recordings.mkdir(parents=True, exist_ok=True)
    args.options = _options(args)
    if not todo:
        _finish(args, document, todo, [])
    farm, left = Farm(kind, args.builders), []
    rankings = {name: ExhaustiveRanking(kind, name) for name in "AB"}
    try:
        worker = farm.start()
        device = worker.device
        document["options"] = {key: value for key, value in args.options.items()}
        document["provenance"] = _provenance(worker)
        for name in todo:
            configs = list(spaces[name].bind(device).enumerate())
            farm.build_ahead(name, spaces[name], configs, device)
        for ranking in rankings.values():
            ranking.info()
        if kind == "cpu":  # builders would compete with the timed work
            for name in todo:
                farm.await_built(name)
        for name in todo:
            if not _time_for(name, farm, began, done, args):
                left.append(name)
                continue
            done[name] = _attempt(name, spaces[name], farm, rankings, device, args)
            farm.forget(name)
            document["wall_s"] = round(time.monotonic() - began, 1)
            _save(args, document)
    finally:
        for ranking in rankings.values():
            ranking.close()
        farm.close()
    _finish(args, document, todo, left)


def _finish(args, document: dict, todo: list[str], left: list[str]):
    document["left"] = left
    _save(args, document)
    print(line("all", document["summary"].get("all", {})))
    failed = [name for name in todo if "problem" in document["spaces"].get(name, {})]
    print(f"remaining: {', '.join(left) or 'nothing'}; failed: {', '.join(failed) or 'nothing'}")
    sys.exit(1 if failed else 0)


def _document(args) -> dict:
    import json

    known = [json.loads(path.read_text()) for path in args.resume if path.exists()]
    document = known[-1] if known else {"script": "benchmarks/selection_regret.py"}
    spaces = {name: entry for earlier in known for name, entry in earlier["spaces"].items()}
    return {**document, "spaces": spaces}


def _options(args) -> dict:
    from tuner import strategies
    from tuner.settings.sections import Budget

    trials = args.trials
    if trials == "auto":
        try:
            Budget(trials="auto")
        except ValueError:
            trials = 120
    return {
        "strategy": args.strategy or ("bayes" if "bayes" in strategies.names() else "tpe"),
        "trials": trials if trials == "auto" else int(trials),
        "builders": args.replayed_builders,
        "build_scale": args.build_scale,
        "measure": args.settings.measure.model_dump(mode="json"),
        "oracle_passes": [args.passes, args.top_passes],
    }


def _time_for(name: str, farm: Farm, began: float, done: dict, args) -> bool:
    """Whether the space would finish in time, estimated from the spaces before it."""
    if not args.stop_after:
        return farm.await_built(name)
    finished = [e for e in done.values() if e.get("wall_s") and e.get("searches")]
    config_s, seed_s = _CONFIG_S, _SEED_S
    if finished:
        config_s = max(e["oracle_s"] / e["configs"] for e in finished)
        seed_s = max((e["wall_s"] - e["oracle_s"]) / len(e["searches"]) for e in finished)
    configs = len(farm.built[name]) + farm.missing(name)
    takes_s = min(args.most, config_s * configs + seed_s * args.seeds)
    deadline = began + args.stop_after - takes_s
    return time.monotonic() < deadline and farm.await_built(name, deadline)


def _attempt(name, task, farm, rankings, device, args) -> dict:
    try:
        entry = measure_space(name, task, farm, rankings, device, args)
    except Exception as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {error}"}
    entry["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    entry["card"] = farm.worker.device.uuid
    held = f"ranking {entry['oracle_s']} s of {entry['wall_s']} s, {entry['agreement']}"
    print(f"{line(name, entry['figures'])} {held}", flush=True)
    return entry


def _provenance(worker) -> dict:
    calibration = worker.calibration
    return {
        "device": worker.device.name,
        "card": worker.device.uuid,
        "toolchain": asdict(worker.toolchain),
        "calibration": asdict(calibration) if calibration else {},
        "cores": len(os.sched_getaffinity(0)),
        "revision": run_facts.read_revision(HERE),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _save(args, document: dict) -> None:
    document["summary"] = summary(document["spaces"])
    write(args.out / "selection_regret.json", document)
    with tarfile.open(args.out / "spaces.tar.gz", "w:gz") as packed:
        for path in sorted(args.recordings.glob("*.space.json")):
            packed.add(path, path.name)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--config", type=Path, default=HERE / "h200_spaces.yaml")
    parser.add_argument("--campaign", default="spaces")
    parser.add_argument("--spaces", nargs="+", help="names of spaces; default: all of the campaign")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--strategy", help="default: bayes if this version has it, else tpe")
    parser.add_argument("--trials", default="auto", help="trials per search: a number, or auto")
    parser.add_argument(
        "--build-scale", type=float, default=0.15, help="seconds per recorded second of a build"
    )
    parser.add_argument("--replayed-builders", type=int, default=15)
    parser.add_argument("--builders", type=int, help="processes that build; default: all cores")
    parser.add_argument(
        "--passes",
        type=int,
        default=12,
        help="passes over all configs, in each of the two rankings",
    )
    parser.add_argument(
        "--top-passes", type=int, default=116, help="further passes over the fastest 20 %%"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        nargs="+",
        default=[],
        help="earlier documents; their spaces are skipped",
    )
    parser.add_argument("--stop-after", type=float, default=0.0, help="seconds")
    parser.add_argument("--most", type=float, default=60.0, help="seconds a space takes at most")
    parser.add_argument("--keep", action="store_true", help="also leave the recordings in --out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
