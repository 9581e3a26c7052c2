#!/usr/bin/env python3
"""Compile configs of every GPU family for GPUs that this machine does not have.

    benchmarks/cross_compile.py --out FILE [--random 10] [--targets cuda:80 cuda:90 ...]

Of each family and target, the default config and random feasible ones are compiled, drawn in turn
for the family's workloads. Prints a line per family and writes how many were built, how many need
more registers or shared memory than the target has, and how many failed, with their messages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections import Counter
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from search_spaces import registry
from workers.compiling import build_kernel
from workers.device import offline
from workers.job_records import Artifact, BuildJob, KernelRef

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")


def drawn(kernel, device, count):
    """The default config of the first workload, then random ones of all workloads in turn."""
    source, workloads = random.Random(7), list(kernel.workloads())
    yield workloads[0], kernel.default_config(workloads[0], device)
    for workload in itertools.islice(itertools.cycle(workloads), count):
        yield workload, kernel.space(workload).bind(workload, device).sample(source, 1)[0]


def compiled(name, target, count):
    """How the builds of one family for one target ended."""
    kernel, device = registry.load(name), offline(target)
    ends, messages = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        for workload, config in drawn(kernel, device, count):
            job = BuildJob("job", KernelRef(name), workload, config, device)
            built = build_kernel(kernel, job, Path(folder))
            if isinstance(built, Artifact):
                ends["spills" if built.facts.spill_bytes else "built"] += 1
            else:
                ends[f"{built.status}"] += 1
                messages[built.message] += 1
    return {"ends": dict(sorted(ends.items())), "messages": dict(messages.most_common())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--random", type=int, default=10)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    args = parser.parse_args()
    names = [name for name in registry.available() if registry.may_run_on(name, "cuda:90")]
    families = {}
    for name in names:
        families[name] = {item: compiled(name, item, args.random) for item in args.targets}
        ends = {item: found["ends"] for item, found in families[name].items()}
        print(name, ends, flush=True)
        totals = {
            item: dict(
                sum((Counter(found[item]["ends"]) for found in families.values()), Counter())
            )
            for item in args.targets
        }
        document = {
            "script": "benchmarks/cross_compile.py",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "triton": metadata.version("triton"),
            "random_configs": args.random,
            "totals": totals,
            "families": families,
        }
        args.out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(totals)


if __name__ == "__main__":
    main()
