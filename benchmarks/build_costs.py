"""What builds for `cuda:90` cost on this machine, which needs no GPU: stages, pools, start and end.

    benchmarks/build_costs.py --out benchmarks/results/cpu/build_costs.json

Adds the figures of this revision to the document. The processor time of a pool is that of the
driver and of all its descendants, Ray's processes included, until the last build has ended. What
a local pool loads for runners does not count: without a GPU, Ray has none.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

from search_spaces.registry import load
from tuner.campaign.run_record import read_revision
from workers import pools
from workers.compiling.job import build_kernel
from workers.device import offline
from workers.job_records import BuildJob, Built, Failure, KernelRef, PoolSpec

KERNELS = ("matmul", "attention", "layer_norm", "softmax")
DEVICE = offline("cuda:90")
_TICKS = os.sysconf("SC_CLK_TCK")
_ROOT = Path(__file__).resolve().parent.parent
#: Parameters that Triton uses after TTIR.
_LATE = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


def jobs(name: str, count: int) -> list[BuildJob]:
    """Builds of random configs of the kernel's first workload."""
    kernel = load(name)
    workload = kernel.workloads()[0]
    configs = kernel.space(workload).bind(workload, DEVICE).sample(random.Random(0), count)
    return [
        BuildJob(f"{name}:{index}", KernelRef(name), workload, config, DEVICE)
        for index, config in enumerate(configs)
    ]


# -- the stages of a build -------------------------------------------------------------------------
def stages(name: str, count: int) -> dict[str, Any]:
    """Milliseconds of a processor per build, and the shares of its stages."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import compiler

    import workers.compiling.gpu as ours

    seconds: Counter[str] = Counter()

    def count_time(owner: Any, function: str) -> None:
        before = owner.__dict__[function]
        inner: Callable[..., Any] = getattr(before, "__func__", before)

        @wraps(inner)
        def call_counted(*args: Any, **kwargs: Any) -> Any:
            began = processor_s()
            try:
                return inner(*args, **kwargs)
            finally:
                seconds[function] += processor_s() - began

        setattr(
            owner, function, staticmethod(call_counted) if inner is not before else call_counted
        )

    for stage in ("make_ttir", "make_ttgir", "make_llir", "make_ptx", "make_cubin"):
        count_time(CUDABackend, stage)
    count_time(CUDABackend, "gluon_to_ttgir")
    count_time(compiler.ASTSource, "make_ir")
    for function in ("_facts", "_identity", "pack_group", "compile_launch"):
        count_time(ours, function)
    kernel, (warm, *rest) = load(name), jobs(name, count + 1)
    with tempfile.TemporaryDirectory() as folder:
        build_kernel(kernel, warm, Path(folder))
        seconds.clear()
        began = processor_s()
        results = [build_kernel(kernel, job, Path(folder)) for job in rest]
        whole_s = processor_s() - began
    early = {tuple(p for p in job.config.items() if p[0] not in _LATE) for job in rest}
    return {
        "ms": round(1e3 * whole_s / len(rest), 1),
        "refused": sum(isinstance(result, Failure) for result in results),
        # What an earlier build of the same process has had.
        "ttir_repeated": round(1 - len(early) / len(rest), 3),
        "shares": {stage: round(value / whole_s, 4) for stage, value in seconds.most_common()},
    }


def processor_s() -> float:
    """Seconds of processor time of this process and the children that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


# -- the same builds by a pool ---------------------------------------------------------------------
def pool(kind: str, count: int, builders: int) -> dict[str, Any]:
    """Seconds of the builds by a pool, from the request for one until it has ended."""
    work = [job for name in KERNELS for job in jobs(name, count)]
    random.Random(0).shuffle(work)
    began, own_s = time.perf_counter(), time.process_time()
    made = pools.create(PoolSpec(kind, {"cuda": None}, builders, torch_free=True))
    made.start()
    started_s = time.perf_counter() - began
    for job in work:
        made.submit_build(job)
    results, first_s = [], 0.0
    while len(results) < len(work):
        results += [event.result for event in made.poll(1.0) if isinstance(event, Built)]
        first_s = first_s or (time.perf_counter() - began if results else 0.0)
    built_s = time.perf_counter() - began
    driver_s, workers_s = time.process_time() - own_s, descendants_s()
    processes = len(descendants())
    ended = time.perf_counter()
    made.close()
    return {
        "builds": len(work),
        "builders": builders,
        "start_s": round(started_s, 3),
        "first_build_s": round(first_s, 3),
        "all_builds_s": round(built_s, 3),
        "end_s": round(time.perf_counter() - ended, 3),
        "processor_s": round(driver_s + workers_s, 3),
        "driver_processor_s": round(driver_s, 3),
        "processor_s_per_build": round((driver_s + workers_s) / len(work), 4),
        "build_s": round(sum(result.build_s for result in results) / len(work), 4),
        "processes": processes,
    }


def descendants() -> dict[int, float]:
    """Seconds of processor time of each living descendant, with the children it has waited for.

    Without the fork servers of runners.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if name.startswith("cuda"):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15])) / _TICKS

    def below(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or below(parents[pid]))

    return {pid: seconds for pid, seconds in used.items() if below(pid)}


def descendants_s() -> float:
    return sum(descendants().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--builds", type=int, nargs="+", default=[6, 24], help="of each kernel")
    parser.add_argument("--builders", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each pool")
    parser.add_argument("--only", help="one part, printed: local, ray, or a kernel")
    chosen = parser.parse_args()
    if chosen.only:
        of_a_kernel = chosen.only in KERNELS
        made = stages if of_a_kernel else partial(pool, builders=chosen.builders)
        print(json.dumps(made(chosen.only, count=chosen.builds[0])))
        return
    document: dict[str, Any] = {
        "device": "CPU only, builds for cuda:90",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "processors": len(os.sched_getaffinity(0)),
        "toolchain": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("triton", "torch", "ray")},
        },
        "stages": {name: _run(name, chosen.builds[-1]) for name in KERNELS},
        # In turn: another load of the machine meets both.
        "pools": [
            {"pool": kind, **_run(kind, count, chosen.builders)}
            for _ in range(chosen.rounds)
            for count in chosen.builds
            for kind in ("local", "ray")
        ],
    }
    document["summary"] = {kind: _summary(document["pools"], kind) for kind in ("local", "ray")}
    print(json.dumps(document, indent=1))
    if chosen.out:
        known = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        known[read_revision(_ROOT)] = document
        chosen.out.write_text(json.dumps(known, indent=1) + "\n")


def _summary(runs: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Medians, and the processor time of a build beyond the pool's own, by the two counts."""
    fewest, most = (min(run["builds"] for run in runs), max(run["builds"] for run in runs))

    def median(name: str, builds: int) -> float:
        found = [run[name] for run in runs if run["pool"] == kind and run["builds"] == builds]
        return statistics.median(found)

    few_s, many_s = median("processor_s", fewest), median("processor_s", most)
    a_build_s = (many_s - few_s) / (most - fewest)
    return {
        "processor_s_of_a_build": round(a_build_s, 4),
        "processor_s_of_the_pool": round(few_s - fewest * a_build_s, 2),
        **{name: median(name, fewest) for name in ("start_s", "first_build_s", "end_s")},
    }


def _run(part: str, builds: int, builders: int = 1) -> Any:
    """One part in a process of its own, which shares no library and no cache with others."""
    counts = ("--builds", f"{builds}", "--builders", f"{builders}")
    command = [sys.executable, __file__, "--only", part, *counts]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
