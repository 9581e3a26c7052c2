"""Tune ranges of sizes, then judge their tables at random sizes that were not measured.

For each range: device time against that of one size, hits at random sizes, wrong results there by a
comparison of this script's own, and at a sample of them the loss of the table's config against a
search of that size of its own, both measured side by side by `tuner bench`. A range is `kernel
dim=1..8192 other=value ...`. With --database, `tuner promote RUN --to FOLDER` adds a range to
published tables. With --tables, nothing is tuned: the tables of a folder are judged, by hits and
results alone, which Triton's interpreter (TRITON_INTERPRET=1) can do as well.

    python benchmarks/range_coverage.py --out OUT.json \\
        "cpu_softmax rows=1..4096 cols=512 dtype=float32"
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from matmul_tasks import facts
from valid_configs import GPU, is_right

import tuner
from search_spaces.records import Workload
from search_spaces.registry import load
from tuner import runtime
from workers.backends.interpreter.arithmetic import extend

#: The ranges of the issue on tables, for a GPU.
DEFAULT = [
    "matmul M=1..8192 N=4096 K=4096 dtype=bfloat16",
    "matmul M=1..8192 N=28672 K=4096 dtype=bfloat16",
    "matmul M=1..8192 N=4096 K=14336 dtype=bfloat16",
    "layer_norm rows=1..65536 cols=4096 dtype=bfloat16",
    "rms_norm rows=1..65536 cols=4096 dtype=bfloat16",
    "softmax rows=1..65536 cols=4096 dtype=bfloat16",
    "attention sequence=128..32768 batch=1 heads=16 head_dim=128 causal=true dtype=bfloat16",
]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: What is printed of a range.
SHOWN = ("range", "seconds", "hits", "median regret", "95th percentile", "worst regret", "wrong")


def read_range(text):
    """The kernel's name, its dims, the dim that is a range `a..b`, and its sizes."""
    name, *words = text.split()
    dims = {}
    for word in words:
        dim, _, value = word.partition("=")
        try:
            dims[dim] = tuner.Range.parse(value) if ".." in value else json.loads(value)
        except json.JSONDecodeError:
            dims[dim] = value
    ((dim, sizes),) = [(k, v) for k, v in dims.items() if isinstance(v, tuner.Range)]
    return name, dims, dim, sizes


def compare(name, workload, configs):
    """Rows of `tuner bench` for configs, the first of them as the reference."""
    words = " ".join(f"{dim}={str(value).lower() if value is True else value}"
                     for dim, value in workload.items())  # fmt: skip
    command = [sys.executable, "-m", "tuner", "bench", name, "--workload", words]
    for config in configs:
        command += ["--config", json.dumps(config)]
    done = subprocess.run(
        [*command, "--baseline", "none", "--format", "json", "--quiet"],
        capture_output=True, text=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    return {json.dumps(row["config"], sort_keys=True): row for row in rows if row["config"]}


def device_s(results):
    return sum(float(each.trials["device_s"].sum()) for each in results if len(each.trials))


def draw_sizes(sizes, count, rng, measured=()):
    """Different random sizes of a range that were not measured."""
    drawn = dict.fromkeys(sizes.draw(8 * count, rng.randrange(2**31)))
    return [size for size in drawn if size not in measured][:count]


def check_results(name, dims, dim, configs):
    """What is known of the results of configs by size: hits, verified sizes and wrong ones."""
    kernel, wrong = load(name), []
    known = {size: config for size, config in configs.items() if config is not None}
    if verifies := "cuda" in kernel.kinds and (GPU or INTERPRETED):
        for size, config in known.items():
            workload = Workload.from_mapping({**dims, dim: size})
            try:
                fault = "" if is_right(kernel, workload, config) else "is wrong"
            except Exception as error:  # the other sizes are still to be judged
                fault = f"{type(error).__name__}: {error}"[:300]
            if fault:
                wrong.append([size, config, fault])
    return {
        "hits": len(known) / len(configs),
        "verified": len(known) if verifies else 0,
        "wrong": wrong,
        "configs": len({json.dumps(each, sort_keys=True) for each in known.values()}),
    }


def judge_tables(folder, text, options):
    """Hits and results of the tables of a folder at random sizes."""
    name, dims, dim, sizes = read_range(text)
    began = time.monotonic()
    configs = {}
    for size in draw_sizes(sizes, options.sizes, random.Random(7)):
        hit = runtime.lookup(name, {**dims, dim: size}, tables=folder, stale="use", quiet=True)
        configs[size] = None if hit is None or hit.how == "default" else dict(hit.config)
    found = check_results(name, dims, dim, configs)
    return {"range": text, **found, "seconds": round(time.monotonic() - began, 1)}


def judge(session, text, options):
    name, dims, dim, sizes = read_range(text)
    began = time.monotonic()
    result = session.tune(name, dims, budget=options.budget, fresh=True)
    found = {"range": text, "run": result.results[0].run_id}
    found["seconds"] = round(time.monotonic() - began, 1)
    measured = {each.workload[dim] for each in result.results}
    rng = random.Random(7)
    unseen = draw_sizes(sizes, options.sizes, rng, measured)
    configs = {size: result.config(**{dim: size}) for size in unseen}
    checked = check_results(name, dims, dim, configs)
    losses, own_s = {}, []
    for size in rng.sample(unseen, min(options.sample, len(unseen))):
        workload = {**dims, dim: size}
        own = session.tune(name, workload, budget=options.budget, fresh=True)
        own_s.append(device_s([own]))
        rows = compare(name, workload, [own.ships, configs[size]])
        row = rows[json.dumps(configs[size], sort_keys=True)]
        if row["status"] == "correct":
            losses[size] = [row["ratio"] - 1, row["low"] - 1, row["high"] - 1]
        else:
            checked["wrong"].append([size, configs[size], f"{row['status']}: {row['note']}"])
    regrets = sorted(max(0.0, loss) for loss, _, _ in losses.values())
    return found | {
        "trials and device seconds": {
            each.workload[dim]: [len(each.trials), round(device_s([each]), 3)]
            for each in sorted(result.results, key=lambda each: each.workload[dim])
        },
        "those of own searches": round(statistics.mean(own_s), 3),
        **checked,
        "judged at": len(regrets),
        "median regret": round(statistics.median(regrets), 4),
        "95th percentile": round(regrets[int(0.95 * (len(regrets) - 1))], 4),
        "worst regret": round(regrets[-1], 4),
        "device time in that of one size": round(
            device_s(result.results) / statistics.mean(own_s), 2
        ),
        "said by the table": dict(result.coverage[0]),
        "losses": {size: [round(each, 4) for each in loss] for size, loss in losses.items()},
        "table": [[dict(e.serves)[dim].low, dict(e.serves)[dim].high, dict(e.config)]
                  for e in result.table.entries],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranges", nargs="*", default=DEFAULT)
    parser.add_argument("--sizes", type=int, default=200, help="that are looked up")
    parser.add_argument("--sample", type=int, default=12, help="of these that are searched")
    parser.add_argument("--budget", type=lambda text: int(text) if text.isdigit() else text,
                        default="auto")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="a file, written after each range")
    parser.add_argument("--database", type=Path, help="a file that keeps the runs")
    parser.add_argument("--tables", type=Path, help="a folder of tables; nothing is tuned")
    options = parser.parse_args()
    result = {"what": __doc__.splitlines()[0], "toolchain": facts(), "ranges": []}
    if INTERPRETED:
        extend()
    url = f"sqlite:///{options.database.resolve()}" if options.database else None
    with tuner.session(database=url) as session:
        for text in options.ranges or DEFAULT:
            tables = options.tables
            found = judge_tables(tables, text, options) if tables else judge(session, text, options)
            result["ranges"].append(found)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            shown = {name: found[name] for name in SHOWN if name in found}
            print(shown, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
