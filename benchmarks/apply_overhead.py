"""Host time of a launch from a table of `tuner.apply`, over the library's own launch.

On a GPU the kernels are empty and really launched. Without one, `run` of the jitted function does
nothing, so that the difference is what the dispatch costs: memo, lookup and merging of arguments.
Launches of all forms are interleaved in rounds of alternating order; figures are medians over
rounds, in microseconds per launch. `load` is the processor time to read a table of a range with
100 to 10,000 entries, beside that of `json.loads` alone, and of lookups in it, the least of seven.
Prints one JSON object to stdout. Takes about 20 s.

    python benchmarks/apply_overhead.py > results/apply_overhead.json
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import triton
import triton.language as tl
from matmul_tasks import facts

import tuner
from tuner import runtime
from tuner.tables.text import text_of

CONFIG = {"BLOCK": 128, "num_warps": 4}
GPU = torch.cuda.is_available()
M, N, K = 512, 1024, 2048


def body(x_ptr, y_ptr, b_ptr, m, n, k, stride, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < 0), mask=at < 0)


def jitted():
    kernel = triton.jit(body)
    if not GPU:
        kernel.run = lambda *args, **kwargs: None
    return kernel


def configs():
    return [triton.Config({"BLOCK": block}, num_warps=4) for block in (128, 256)]


plain_dims, plain_tuple, plain_function, plain_miss = (jitted() for _ in range(4))
tuned = triton.autotune(configs(), key=["m", "n"])(jitted())
around = triton.heuristics({"stride": lambda args: 64})(
    triton.autotune(configs(), key=["m", "n"])(jitted())
)
untouched_tuned = triton.autotune(configs(), key=["m", "n"])(jitted())
untouched_around = triton.heuristics({"stride": lambda args: 64})(
    triton.autotune(configs(), key=["m", "n"])(jitted())
)
untouched = jitted()


def tables(x):
    """A table per kernel, named as a library's kernels are."""
    arguments = {"x_ptr": x, "y_ptr": x, "b_ptr": x, "m": M, "n": N, "k": K, "eps": 1e-6}
    whole = {**arguments, "stride": 64}
    dims = {"m": M, "n": N, "k": K, "dtype": "float32"}
    keys = {
        "plain_dims": dims,
        "plain_tuple": runtime.call_key(whole, (1,)),
        "plain_function": runtime.call_key(whole, len),
        "plain_miss": {**dims, "m": 1},
        "tuned": dims,
        "around": dims,
    }
    device = runtime.current_device()
    return [
        runtime.Table(
            kernel=f"{__name__}:{name}",
            space_hash="",
            device=device,
            toolchain={"triton": triton.__version__},
            entries=(runtime.Entry(key, CONFIG),),
            kernel_hashes=(runtime.kernel_hash(untouched),),
            launch_hash="aa",
            path=f"{name}.json",
        )
        for name, key in keys.items()
    ]


def launches(x):
    """Per form of launch: the launch from a table, and the same of an untouched kernel."""

    def of_plain(kernel, grid):
        return lambda: kernel[grid](x, x, x, M, N, K, 64, 1e-6, BLOCK=128, num_warps=4)

    def of_tuned(kernel):
        return lambda: kernel[(1,)](x, x, x, M, N, K, 64, 1e-6)

    def of_around(kernel):
        return lambda: kernel[(1,)](x, x, x, M, N, K, eps=1e-6)

    def function(meta):
        return (1,)

    one = (1,)
    return {
        "plain, key of dims": (of_plain(plain_dims, function), of_plain(untouched, function)),
        "plain, captured key, tuple as grid": (
            of_plain(plain_tuple, one),
            of_plain(untouched, one),
        ),
        "plain, captured key, function as grid": (
            of_plain(plain_function, function),
            of_plain(untouched, function),
        ),
        "plain, a miss": (of_plain(plain_miss, one), of_plain(untouched, one)),
        "autotuned": (of_tuned(tuned), of_tuned(untouched_tuned)),
        "heuristics over autotuned": (of_around(around), of_around(untouched_around)),
    }


def per_launch_us(call, count):
    if GPU:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    elapsed_ns = time.perf_counter_ns() - start
    if GPU:
        torch.cuda.synchronize()
    return elapsed_ns / count / 1e3


def measure(rounds, count):
    x = torch.zeros(64, 32, device="cuda" if GPU else "cpu")
    calls = launches(x)
    if not GPU:  # What the tuning of a machine without a GPU would find.
        for kernel in (untouched_tuned, untouched_around.fn):
            kernel.cache = _Always(kernel.configs[0])
    with tuner.applied(tables(x)) as application:
        for pair in calls.values():
            for call in pair:
                per_launch_us(call, count)
        times = {name: ([], []) for name in calls}
        for at in range(rounds):
            for name, pair in calls.items():
                for which in (0, 1) if at % 2 else (1, 0):
                    times[name][which].append(per_launch_us(pair[which], count))
        uses = {use.kernel.partition(":")[2]: (use.hits, use.misses) for use in application.kernels}
    assert all(bool(hits) != bool(misses) for hits, misses in uses.values()), uses
    return {
        name: {
            "from_table_us": round(statistics.median(ours), 3),
            "own_us": round(statistics.median(own), 3),
            "over_own_us": round(
                statistics.median(a - b for a, b in zip(ours, own, strict=True)), 3
            ),
        }
        for name, (ours, own) in times.items()
    }


def measure_load(count):
    """Processor time of a table with `count` entries: ms to load it, us of lookups in it."""
    table = range_table(count)
    key = {"M": 16 * 50 - 3, "N": 128, "K": 4096, "dtype": "bfloat16"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load@NVIDIA_H200.json"
        path.write_text(text_of(table))
        text, read = path.read_text(), runtime.read(path)

        def lookup():
            return runtime.lookup("load", key, tables=folder, device="NVIDIA H200")

        assert lookup().how == "range"
        assert read.find({**key, "M": 10**6}).how == "nearest"
        return {
            "bytes": len(text),
            "json_ms": round(cpu_us(lambda: json.loads(text)) / 1e3, 2),
            "load_ms": round(cpu_us(lambda: runtime.read(path)) / 1e3, 2),
            "exact_us": cpu_us(lambda: read.find(table.entries[0].key), 100),
            "range_us": cpu_us(lambda: read.find(key), 100),
            "nearest_us": cpu_us(lambda: read.find({**key, "M": 10**6})),
            "cached_lookup_us": cpu_us(lookup, 1000),
        }


def range_table(count):
    """A table of parts of a range of M, a hundred for each N."""
    free = {name: runtime.Span(1, 2**31 - 1) for name in "MNK"}
    config = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    entries = [
        runtime.Entry(
            {"M": 16 * (at % 100 + 1), "N": 128 * (at // 100 + 1), "K": 4096, "dtype": "bfloat16"},
            config,
            verdict="faster",
            median_us=12.5,
            speedup_over_default=1.2,
            interval=(1.1, 1.3),
            tie_set=(config,),
            provenance={"run": 1, "task": at, "trial": 3, "attempt": 1},
            sizes=free,
            serves={"M": runtime.Span(16 * (at % 100) + 1, 16 * (at % 100 + 1))},
        )
        for at in range(count)
    ]
    device = runtime.DeviceFacts("NVIDIA H200")
    rule = runtime.Rule("sizes")
    return runtime.Table("load", "", device, {}, tuple(entries), rule, launch_hash="aa")


def cpu_us(call, count=1):
    """Least processor time of a call over seven rounds, in us."""
    times = []
    for _ in range(7):
        start = time.process_time_ns()
        for _ in range(count):
            call()
        times.append((time.process_time_ns() - start) / count / 1e3)
    return round(min(times), 2)


class _Always(dict):
    """The results of a tuning that has seen every key."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def __contains__(self, key):
        return True

    def __getitem__(self, key):
        return self.config


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=601)
    parser.add_argument("--launches", type=int, default=50)
    options = parser.parse_args()
    if not GPU:
        os.environ["TUNER_DEVICE"] = "NVIDIA H200"
    sys.modules.setdefault(__name__, sys.modules["__main__"])
    result = {
        "what": "host time per launch, microseconds",
        "launches": "real, of empty kernels" if GPU else "run of the jitted function does nothing",
        "toolchain": facts(),
        "forms": measure(options.rounds, options.launches),
        "load": {count: measure_load(count) for count in (100, 1000, 10_000)},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
