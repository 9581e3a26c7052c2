"""Time many configs at many sizes of one dim, or say how near the best configs of sizes are.

Without a file it measures on the GPU: the measured default, the family's own default, some of their
neighbours and random points of each size's space, at every size where they are valid. Builds run
beside each other before anything is timed. With a file that it wrote, it says by how much
the best of the N fastest configs of both neighbours of a size is slower than the best one there.

    python benchmarks/size_grid.py "layer_norm rows=1,16,64 cols=4096 dtype=bfloat16" > grid.json
    python benchmarks/size_grid.py --read results/h200/layer_norm_sizes.json
"""

import argparse
import json
import math
import multiprocessing
import random
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch
from matmul_tasks import facts

from search_spaces.measured_defaults import measured_default
from search_spaces.records import Workload, config_key
from search_spaces.registry import load
from search_spaces.shape_tensor import torch_dtype
from workers.backend_kinds import spec

#: Larger than any L2 cache of today.
FLUSH_BYTES = 256 << 20


def find_device():
    return spec("cuda").find_devices()[0]


def list_configs(kernel, workloads, device, count):
    """The default configs of every workload, and of each `count` neighbours and random points."""
    rng, found = random.Random(11), {}
    for workload in workloads:
        space = kernel.space(workload).bind(workload, device)
        own = kernel.default_config(workload, device)
        usual = measured_default(kernel, workload, device) or own
        near = space.neighbours(usual)
        near = rng.sample(near, min(count, len(near)))
        for config in (usual, own, *near, *space.sample(rng, count)):
            found.setdefault(config_key(config), config)
    return list(found.values())


def make_runs(kernel, workload, configs, device):
    """A launch of each config at a workload, by its place; none where it is not valid there."""
    space = kernel.space(workload).bind(workload, device)
    tensors = dict(kernel.make_inputs(workload, 1, "cuda"))

    def allocate(items):
        return {
            name: torch.zeros(item.shape, dtype=torch_dtype(item.dtype), device="cuda")
            for name, item in items.items()
        }

    tensors |= allocate(kernel.outputs(workload))
    for place, config in enumerate(configs):
        if space.why_invalid(config) is None:
            more = allocate(kernel.scratch(workload, config))
            yield place, kernel.launches(workload, config, {**tensors, **more})


def run(launches):
    for one in launches:
        one.fn[one.grid](*one.args, **one.kwargs)


def build(job):
    """Launch configs once, so that their binaries are in Triton's cache."""
    name, workloads, configs = job
    for workload in workloads:
        for _, launches in make_runs(load(name), workload, configs, find_device()):
            with suppress(Exception):  # what cannot be launched has no time later
                run(launches)
    torch.cuda.synchronize()


def time_us(launches, flush, repeats):
    """The median time with a cold L2 cache; None where it cannot be launched."""
    try:
        run(launches)
    except Exception:
        return None
    pairs = []
    for _ in range(repeats):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(launches)
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return round(statistics.median(1e3 * start.elapsed_time(end) for start, end in pairs), 3)


def measure(text, count, processes):
    name, *words = text.split()
    dims = dict(word.split("=", 1) for word in words)
    ((dim, sizes),) = [(key, value.split(",")) for key, value in dims.items() if "," in value]
    rest = {key: int(value) if value.isdigit() else value for key, value in dims.items()}
    workloads = [Workload.from_mapping({**rest, dim: int(size)}) for size in sizes]
    kernel, device = load(name), find_device()
    configs = list_configs(kernel, workloads, device, count)
    jobs = [(name, workloads, configs[at::processes]) for at in range(processes)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        list(pool.map(build, jobs))
    flush, grid = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"), []
    for workload in workloads:
        times = [None] * len(configs)
        for place, launches in make_runs(kernel, workload, configs, device):
            times[place] = time_us(launches, flush, repeats=7)
        grid.append({"size": workload[dim], "us": times})
        print(workload.key, file=sys.stderr)
    fixed = {key: value for key, value in rest.items() if key != dim}
    return {"what": __doc__.splitlines()[0], "toolchain": facts(), "kernel": name, "rest": fixed,
            "dim": dim, "configs": configs, "grid": grid}  # fmt: skip


def judge(grid):
    """Losses at each size of the best of the N fastest configs of its two neighbours, by N."""
    times = {row["size"]: [math.inf if us is None else us for us in row["us"]] for row in grid}
    sizes = sorted(times)
    best = {size: sorted(range(len(times[size])), key=times[size].__getitem__) for size in sizes}
    found = {}
    for count in (1, 3, 8, 16):
        losses = []
        for (low, size), (_, high) in pairwise(pairwise(sizes)):
            pool = {*best[low][:count], *best[high][:count]}
            losses.append(min(times[size][at] for at in pool) / min(times[size]) - 1)
        found[count] = {"mean": round(statistics.mean(losses), 4), "worst": round(max(losses), 4)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="?", help="kernel dim=1,16,64 other=value ...")
    parser.add_argument("--read", type=Path, help="a file that this script wrote")
    parser.add_argument("--configs", type=int, default=10, help="neighbours and points a size")
    parser.add_argument("--processes", type=int, default=15)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(judge(json.loads(options.read.read_text())["grid"]), indent=1))
        return
    json.dump(measure(options.sizes, options.configs, options.processes), sys.stdout)
    print()


if __name__ == "__main__":
    main()
