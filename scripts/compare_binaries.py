"""Compare the binaries of two revisions: of kernels whose source is only arranged anew.

    python scripts/compare_binaries.py [--target cuda:90] [--configs 10] [--workloads 3]
        [--workload JSON]... OLD_REVISION KERNEL...

For each kernel, the default config of the first, the last and some workloads between them, or of
the given workloads (`{"M": 16, ...}`), and random configs of the same workloads, are compiled by
the old revision and by the working tree with this machine's Triton. The exit code is 1 where a
launch or a binary differs: names, debug information and notes of a binary do not count.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from compiled_launches import ROOT, in_tree, launches, unnamed, unpack


def main() -> int:
    """Compare, with one line a kernel and one for each variant that differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="git revision to compare the working tree with")
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--configs", type=int, default=10, help="random configs of each kernel")
    parser.add_argument("--workloads", type=int, default=3, help="workloads of each kernel")
    parser.add_argument("--workload", action="append", default=[], help="dims as a JSON object")
    options = parser.parse_args()
    given = [json.loads(workload) for workload in options.workload]
    chosen = json.dumps(given or options.workloads)
    sizes = (options.target, f"{options.configs}", chosen)
    differing = 0
    with tempfile.TemporaryDirectory(prefix="tuner-compare-") as scratch:
        old = Path(scratch) / "old"
        unpack(options.revision, old)
        for name in options.kernels:
            before = in_tree(old, "compare_binaries", "examine", name, *sizes)
            after = in_tree(ROOT, "compare_binaries", "examine", name, *sizes)
            differing += report(name, before, after)
    return int(differing > 0)


def report(name: str, before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print how the variants of a kernel compare; returns how many differ."""
    variants = sorted({*before, *after})
    differing = [variant for variant in variants if not same(before, after, variant)]
    failed = [variant for variant in variants if isinstance(before.get(variant), str)]
    for variant in differing:
        print(f"{name} {variant}: differs")
    for variant in failed:
        print(f"{name} {variant}: does not compile: {before[variant]}")
    equal = len(variants) - len({*differing, *failed})
    print(
        f"{name}: {equal} of {len(variants)} variants have equal launches and binaries", flush=True
    )
    return len(differing)


def same(before: dict[str, Any], after: dict[str, Any], variant: str) -> bool:
    """Whether both trees launch the same code for a variant, or both fail to compile it."""
    old, new = before.get(variant), after.get(variant)
    if old is None or new is None or isinstance(old, str) or isinstance(new, str):
        return old == new
    return unnamed(old) == unnamed(new)


# -- in the process of one tree -------------------------------------------------------------------
def examine(name: str, target: str, configs: str, workloads: str) -> None:
    """Print, as JSON, the compiled launches of variants: {variant: launches or message}.

    workloads: JSON of how many of the kernel's own, or of a list of the dims of each.
    """
    from search_spaces import registry
    from search_spaces.records import canonical_json
    from workers.device import offline

    kernel, device = registry.load(name), offline(target)
    found: dict[str, Any] = {}
    chosen = chosen_of(kernel, json.loads(workloads))
    for workload, config in variants_of(kernel, device, int(configs), chosen):
        variant = f"{workload.key} {canonical_json(config)}"
        try:
            found[variant] = launches(kernel, workload, config, target)
        except Exception as error:
            found[variant] = type(error).__name__
    print(canonical_json(found))


def chosen_of(kernel: Any, workloads: int | list[dict[str, Any]]) -> list[Any]:
    """The given workloads, or as many of the kernel's own, evenly spread."""
    from search_spaces.records import Workload

    if not isinstance(workloads, int):
        return [Workload.from_mapping(dims) for dims in workloads]
    known = list(kernel.workloads())
    steps = max(1, min(workloads, len(known)) - 1)
    places = sorted({(len(known) - 1) * step // steps for step in range(steps + 1)})
    return [known[at] for at in places[:workloads]]


def variants_of(kernel: Any, device: Any, configs: int, chosen: list[Any]) -> list[tuple[Any, Any]]:
    """The default config of each chosen workload, and random ones, the same in both trees."""
    found = [(workload, kernel.default_config(workload, device)) for workload in chosen]
    for at, workload in enumerate(chosen):
        share = len(range(at, configs, len(chosen)))
        bound = kernel.space(workload).bind(workload, device)
        found += [(workload, config) for config in bound.sample(random.Random(at), share)]
    return found


if __name__ == "__main__":
    sys.path.insert(0, f"{ROOT}")
    sys.exit(main())
