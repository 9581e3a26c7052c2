"""Random calls of every operator at the edges of dtypes and shapes, against torch's function.

Usage:

    python benchmarks/operator_edges.py --out OUT [--calls 5000] [--seed 0] [--only NAME ...]
    TRITON_INTERPRET=1 python benchmarks/operator_edges.py --out OUT --kernels

--kernels: what a kernel takes runs on it, with its default config, in Triton's interpreter; else
torch runs what no table serves. Prints calls, differences and calls of kernels by operator, and one
line for each difference; writes OUT/operator_edges.json. Fails where anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/ops")]

from edge_samples import Sampler, difference, run_kernels  # noqa: E402
from operator_cases import CASES  # noqa: E402

from tuner.ops.operator import OPERATORS  # noqa: E402


def kernel_calls() -> int:
    """Calls that kernels have run; decisions are forgotten."""
    found = 0
    for each in OPERATORS.values():
        found += sum(one.calls for one in each.decisions() if one.choice.implementation == "tuned")
        each.forget()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--only", nargs="*", default=[*CASES])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.kernels:
        run_kernels()
    found = {name: {"calls": 0, "differences": 0, "kernels": 0} for name in options.only}
    for at in range(options.calls):
        name = options.only[at % len(options.only)]
        seed, counts = options.seed + at, found[name]
        why = difference(CASES[name].edges(Sampler(seed, options.kernels)))
        counts["calls"] += 1
        counts["differences"] += bool(why)
        counts["kernels"] += kernel_calls()
        if why:
            print(f"{name} seed {seed}: {why}", flush=True)
    for name, counts in found.items():
        print(f"{name:28}", *(f"{count:6} {key}" for key, count in counts.items()))
    wrong = sum(counts["differences"] for counts in found.values())
    print(f"{options.calls} calls, {wrong} differences")
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"calls": options.calls, "seed": options.seed, "operators": found}
    (options.out / "operator_edges.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
