#!/usr/bin/env python3
"""Speed-up of one campaign of 32 tasks with 1, 2 and 4 GPUs of one host.

    benchmarks/multi_gpu.py --out DIR [--gpus 4 1 2] [--pool local] [--stop-after 540]

Each count runs in its own process, which sees that many GPUs and the processors of such a node (16
per GPU, of which 15 build). Caches and database are empty. Seconds count from warm workers (every
runner is up, every builder has compiled another kernel) to the result of the last confirmation.
With the largest count, every GPU then repeats some finals: ratios to the first finalist
must agree. Writes DIR/multi_gpu.json again after each count. --simulate replays synthetic spaces
without a GPU, to test the script.

The first campaign on a machine has extra costs: libraries load from disk, the memory of a virtual
machine grows, and Triton up to 3.6 builds one launcher per kernel signature and keeps it for its
user. A campaign of the largest count therefore runs first as the `rehearsal`; the document reports
it, but no ratio uses it. Active neighbours slow a processor down, so a small count on an otherwise
idle host looks faster than on a shared host. With --occupy, the processors that a count leaves free
run other builds.
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
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [f"{ROOT}", f"{ROOT / 'benchmarks'}", f"{ROOT / 'tests'}"]

from search_spaces.records import Device  # noqa: E402
from tuner.campaign.run_record import read_revision  # noqa: E402
from workers import device  # noqa: E402

CONFIG = ROOT / "benchmarks" / "multi_gpu.yaml"
#: Processors of a node per GPU; one of them launches.
CORES_PER_GPU, BUILDERS_PER_GPU = 16, 15
#: Minimum speed-up of four GPUs, and maximum difference of finals' ratios between GPUs.
BOUND, AGREE = 3.6, 0.005


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, nargs="+", default=[4, 1, 2])
    parser.add_argument("--pool", default="local", choices=("local", "ray"))
    parser.add_argument("--builders-per-gpu", type=int, default=BUILDERS_PER_GPU)
    parser.add_argument("--cores-per-gpu", type=int, default=CORES_PER_GPU)
    parser.add_argument("--in-flight", type=int, help="tasks searched at once")
    parser.add_argument("--trials", type=int, help="trials of each task, instead of the file's")
    parser.add_argument("--strategy", help="strategy, instead of the file's")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument(
        "--occupy",
        action="store_true",
        help="run other builds on the processors that a count leaves free",
    )
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        return run_count(args)
    began = time.monotonic()
    document = heading(args)
    most = max(args.gpus)
    rehearsal = started(most, args, "rehearsal", args.stop_after)
    document["rehearsal"] = {key: rehearsal.get(key) for key in ("wall_s", "problem")}
    for count in args.gpus:
        left_s = args.stop_after - (time.monotonic() - began)
        if left_s > 0:
            name, compare = f"{count}_gpus", count == most > 1
            document["gpus"][str(count)] = started(count, args, name, left_s, compare=compare)
        summarise(document)
        path = args.out / "multi_gpu.json"
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(json.dumps({key: document[key] for key in ("speedup", "agreement", "winners")}, indent=1))
    return 0


def heading(args: argparse.Namespace) -> dict:
    return {
        "script": "benchmarks/multi_gpu.py",
        "what": "simulated: no device was used" if args.simulate else "measured",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": read_revision(ROOT),
        "pool": args.pool,
        "builders_per_gpu": args.builders_per_gpu,
        "cores_per_gpu": args.cores_per_gpu,
        "others_busy": args.occupy,
        "bound": {"speedup_of_4": BOUND, "ratios": AGREE},
        "gpus": {},
    }


# -- one count of GPUs -----------------------------------------------------------------------------
def started(
    count: int, args: argparse.Namespace, name: str, limit_s: float, *, compare: bool = False
) -> dict:
    """The document of one count, from its own process with that many GPUs and processors."""
    folder = args.out / name
    command = [sys.executable, f"{Path(__file__).resolve()}", "--one", f"{count}"]
    command += ["--out", f"{folder}", "--pool", args.pool]
    command += ["--builders-per-gpu", f"{args.builders_per_gpu}"]
    command += ["--compare"] if compare else []
    for option in ("in_flight", "trials", "strategy"):
        if getattr(args, option) is not None:
            command += [f"--{option.replace('_', '-')}", f"{getattr(args, option)}"]
    command += ["--simulate"] if args.simulate else []
    usable = sorted(os.sched_getaffinity(0))
    processors = usable[: count * args.cores_per_gpu]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:count]),
        "TRITON_HOME": f"{args.out.resolve()}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    others = set(usable) - set(processors) if args.occupy else set()
    with occupied(others, device.offline("cuda:90")):
        process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, processors)
        )
        try:
            code = process.wait(limit_s if limit_s != float("inf") else None)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return {"problem": f"did not finish within {limit_s:.0f} s"}
    path = folder / "one.json"
    if code or not path.exists():
        return {"problem": f"exit code {code}"}
    return {"cores": len(processors), **json.loads(path.read_text())}


def run_count(args: argparse.Namespace) -> int:
    import multi_gpu_run

    document = multi_gpu_run.campaign(
        args.one,
        CONFIG,
        args.out,
        pool=args.pool,
        builders=args.one * args.builders_per_gpu,
        in_flight=args.in_flight,
        trials=args.trials,
        strategy=args.strategy,
        compare=args.compare,
        simulate=args.simulate,
    )
    (args.out / "one.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"{args.one} GPUs: {document['wall_s']} s, busy {document['busy_shares']}", flush=True)
    return 0


# -- other work on the host ----------------------------------------------------------------------
@contextmanager
def occupied(processors: Collection[int], target: Device) -> Iterator[None]:
    """A context in which each processor builds variants of a matmul, one after the other.

    target: the device to build for; it is not opened.
    """
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="occupied-", ignore_cleanup_errors=True) as folder:
        busy = [
            context.Process(target=_build, args=(processor, target, folder), daemon=True)
            for processor in sorted(processors)
        ]
        try:
            for process in busy:
                process.start()
            yield
        finally:
            for process in busy:
                process.kill()
                process.join()


def _build(processor: int, target: Device, folder: str) -> None:
    os.sched_setaffinity(0, {processor})
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from acceptance.fields import FIELDS

    from workers.compiling import build
    from workers.job_records import BuildJob

    field = FIELDS["matmul_4096"]
    for turn in itertools.count():
        cache = Path(folder) / f"{processor}-{turn}"
        for at, config in enumerate(field.configs(target)):
            job = BuildJob(f"{at}", field.ref, field.workload, config, replace(target, uuid=""))
            build(job, cache)


# -- summary ------------------------------------------------------------------------------
def summarise(document: dict) -> None:
    """Add speed-ups over one GPU, agreement between GPUs, and agreement of winners."""
    runs = {int(n): run for n, run in document["gpus"].items() if "wall_s" in run}
    single = runs.get(1)
    document["speedup"] = (
        {str(n): round(single["wall_s"] / run["wall_s"], 3) for n, run in sorted(runs.items())}
        if single
        else {}
    )
    agreements = [run["agreement"] for run in runs.values() if run.get("agreement")]
    document["agreement"] = agreements[0] if agreements else {}
    document["winners"] = {}
    for n, run in sorted(runs.items()):
        if single is None or n == 1:
            continue
        pairs = [(run["winners"][name], single["winners"][name]) for name in single["winners"]]
        document["winners"][f"{n} against 1"] = {
            "tasks": len(pairs),
            "same": sum(a["winner"] == b["winner"] for a, b in pairs),
            "in_the_other_tie_set": sum(
                a["winner"] in b["tie_set"] or b["winner"] in a["tie_set"] for a, b in pairs
            ),
        }
    four = document["speedup"].get("4")
    document["passed"] = {
        "speedup_of_4": four >= BOUND if four else None,
        "ratios": document["agreement"].get("worst", 1.0) <= AGREE if agreements else None,
    }


if __name__ == "__main__":
    sys.exit(main())
