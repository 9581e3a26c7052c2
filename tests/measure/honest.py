"""Several hundred honest Triton variants, built in other processes than the measuring one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from search_spaces.records import Device, Workload
from search_spaces.registry import load
from workers.compiling import build
from workers.job_records import Artifact, BuildJob, KernelRef, MeasureJob

#: Number of variants drawn per problem.
DRAWN = 40
PROBLEMS = (
    ("softmax", Workload.of(rows=2048, cols=2048, dtype="bfloat16")),
    ("softmax", Workload.of(rows=333, cols=1001, dtype="float32")),
    ("softmax", Workload.of(rows=4096, cols=513, dtype="float16")),
    ("matmul", Workload.of(M=1024, N=1024, K=1024, dtype="bfloat16")),
    ("matmul", Workload.of(M=32, N=4096, K=2048, dtype="bfloat16")),
    ("matmul", Workload.of(M=515, N=771, K=1030, dtype="float16")),
    # So that the space's tf32 is honest too.
    ("matmul", Workload.of(M=512, N=512, K=512, dtype="float32", tolerance=2e-3)),
)
_PROCESSES = 14
_CANDIDATES = 16


def jobs(device: Device, folder: Path, given: dict) -> Iterator[MeasureJob]:
    """Measuring jobs of up to 16 built variants each. given: other fields of the jobs."""
    orders = [order for problem in PROBLEMS for order in _orders(device, *problem)]
    workers = min(_PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        folders = [folder / f"{index % workers}" for index in range(len(orders))]
        built = list(pool.map(build, orders, folders, chunksize=1))
    for name, workload in PROBLEMS:
        fit = [
            result
            for order, result in zip(orders, built, strict=True)
            if order.workload == workload and isinstance(result, Artifact)
        ]
        for start in range(0, len(fit), _CANDIDATES):
            candidates = tuple(fit[start : start + _CANDIDATES])
            yield MeasureJob(f"{name} {start}", KernelRef(name), workload, candidates, **given)


def _orders(device: Device, name: str, workload: Workload) -> list[BuildJob]:
    space = load(name).space(workload).bind(workload, device)
    configs = list(space.enumerate())
    drawn = random.Random(name).sample(configs, min(DRAWN, len(configs)))
    return [
        BuildJob(f"{index}", KernelRef(name), workload, config, device)
        for index, config in enumerate(drawn)
    ]
