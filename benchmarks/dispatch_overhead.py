"""Host time per launch: a plain Triton launch, a table hit of tuner.runtime, triton.autotune.

The kernel is empty, so the device keeps up and the measurement shows host time only. The three
methods are interleaved in rounds of alternating order. Figures are medians over rounds, in
microseconds per launch. Prints one JSON object to stdout. Needs a GPU and takes about 10 s.

    python benchmarks/dispatch_overhead.py > results/dispatch.json
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import triton
import triton.language as tl
from matmul_tasks import facts

from tuner import runtime

CONFIG = {"BLOCK": 128, "num_warps": 4}
OTHER = {"BLOCK": 256, "num_warps": 8}


def _configs():
    return [
        triton.Config({"BLOCK": config["BLOCK"]}, num_warps=config["num_warps"])
        for config in (CONFIG, OTHER)
    ]


@triton.jit
def empty_kernel(x_ptr, y_ptr, m, n, k, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < 0), mask=at < 0)


def launchers(folder: Path):
    """The three ways to launch the same binary, by name."""
    x, y = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    m, n, k, stride = 512, 1024, 2048, 64
    keys = ["m", "n", "k"]
    from_table = runtime.autotune(_configs(), key=keys, table=folder)(empty_kernel)
    write_table(folder, from_table, {"m": m, "n": n, "k": k, "dtype": "float32"})
    tuned = triton.autotune(_configs(), key=keys)(empty_kernel)

    def plain():
        empty_kernel[(1,)](x, y, m, n, k, stride, BLOCK=128, num_warps=4)

    def hit():
        from_table[(1,)](x, y, m, n, k, stride)

    def autotuned():
        tuned[(1,)](x, y, m, n, k, stride)

    return {
        "plain": plain,
        "tuner_runtime_hit": hit,
        "triton_autotune_cached": autotuned,
    }, from_table


def write_table(folder: Path, kernel: runtime.Autotuned, key: dict) -> None:
    device = runtime.current_device()
    if device is None:
        sys.exit("needs a GPU: torch sees none")
    table = {
        "schema": runtime.SCHEMA,
        "kernel": {
            "name": "empty_kernel",
            "launch_hash": "aa",
            "kernel_hashes": [runtime.kernel_hash(kernel)],
        },
        "device": {"name": device.name},
        "toolchain": {"triton": triton.__version__},
        "lookup": {"rule": "exact"},
        "entries": [{"key": key, "config": CONFIG, "verdict": "undecided"}],
    }
    (folder / "empty_kernel@here.json").write_text(json.dumps(table))


def per_launch_us(call, launches: int) -> float:
    """Host microseconds per call; the queue is empty at the start and stays short."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(launches):
        call()
    elapsed_ns = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return elapsed_ns / launches / 1e3


def lookup_us(folder: Path, rounds: int) -> float:
    """Microseconds of one cached `lookup`."""
    key = {"m": 512, "n": 1024, "k": 2048, "dtype": "float32"}
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(1000):
            runtime.lookup("empty_kernel", key, tables=folder)
        times.append((time.perf_counter_ns() - start) / 1e6)
    return statistics.median(times)


def measure(rounds: int, launches: int) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls, from_table = launchers(folder)
        for call in calls.values():
            per_launch_us(call, launches)
        times = {name: [] for name in calls}
        for round_number in range(rounds):
            order = list(calls) if round_number % 2 == 0 else list(reversed(calls))
            for name in order:
                times[name].append(per_launch_us(calls[name], launches))
        lookup = lookup_us(folder, rounds)
        tuned = bool(from_table.cache)
    medians = {name: statistics.median(values) for name, values in times.items()}
    over = {
        name: statistics.median(a - b for a, b in zip(values, times["plain"], strict=True))
        for name, values in times.items()
        if name != "plain"
    }
    return {
        "launch_us": {name: round(value, 3) for name, value in medians.items()},
        "over_plain_us": {name: round(value, 3) for name, value in over.items()},
        "lookup_us": round(lookup, 3),
        "hit_was_tuned": tuned,
        "rounds": rounds,
        "launches_per_round": launches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--launches", type=int, default=500)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a GPU: torch sees none")
    result = {
        "what": "host time per launch, microseconds",
        "toolchain": facts(),
        **measure(options.rounds, options.launches),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
