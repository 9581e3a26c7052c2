"""What builds for `cuda:90` cost on this machine, which needs no GPU: stages, pools, start and end.

python benchmarks/build_costs.py --out benchmarks/results/cpu/build_costs.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

from search_spaces.registry import load
from workers import pools
from workers.compiling.job import build_kernel
from workers.device import offline
from workers.job_records import BuildJob, Built, Failure, KernelRef, PoolSpec

KERNELS = ("matmul", "attention", "layer_norm", "softmax")
DEVICE = offline("cuda:90")
_PAGE_TICKS = os.sysconf("SC_CLK_TCK")


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
        def counted(*args: Any, **kwargs: Any) -> Any:
            began = processor_s()
            try:
                return inner(*args, **kwargs)
            finally:
                seconds[function] += processor_s() - began

        setattr(owner, function, staticmethod(counted) if inner is not before else counted)

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
    refused = sum(isinstance(result, Failure) for result in results)
    shares = {stage: round(value / whole_s, 4) for stage, value in seconds.most_common()}
    return {"ms": round(1e3 * whole_s / len(rest), 1), "refused": refused, "shares": shares}


def processor_s() -> float:
    """Seconds of processor time of this process and the children that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


# -- the same builds by a pool ---------------------------------------------------------------------
def pool(kind: str, builders: int, count: int) -> dict[str, Any]:
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
    """Seconds of processor time of each living descendant, with the children it has waited for."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15])) / _PAGE_TICKS

    def below(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or below(parents[pid]))

    return {pid: seconds for pid, seconds in used.items() if below(pid)}


def descendants_s() -> float:
    return sum(descendants().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--builds", type=int, default=20, help="of each kernel")
    parser.add_argument("--builders", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each pool")
    parser.add_argument("--only", help="one part, printed: local, ray, or a kernel")
    chosen = parser.parse_args()
    if chosen.only:
        made = (
            stages(chosen.only, chosen.builds)
            if chosen.only in KERNELS
            else pool(chosen.only, chosen.builders, chosen.builds)
        )
        print(json.dumps(made))
        return
    document = {
        "device": "CPU only, builds for cuda:90",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "processors": len(os.sched_getaffinity(0)),
        "toolchain": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("triton", "torch", "ray")},
        },
        "stages": {name: _run(name, chosen) for name in KERNELS},
        # In turn: another load of the machine meets both.
        "pools": [
            {kind: _run(kind, chosen) for kind in ("local", "ray")} for _ in range(chosen.rounds)
        ],
    }
    text = json.dumps(document, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n")


def _run(part: str, chosen: argparse.Namespace) -> Any:
    """One part in a process of its own, which shares no library and no cache with others."""
    counts = ("--builds", f"{chosen.builds}", "--builders", f"{chosen.builders}")
    command = [sys.executable, __file__, "--only", part, *counts]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
