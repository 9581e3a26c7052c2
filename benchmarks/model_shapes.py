"""Shapes of public models that no table names, through tuner.ops: right, and as fast as the best.

Workloads are drawn at random from the sizes of public models (public_models.py). Each is called
through its operator with what the shipped tables know; the results are compared with the kernel's
reference, and the time, interleaved and apart from the product (interleaved.py), with that of the
fastest baseline: eager torch, `torch.compile` (`--max-autotune` for products), and vendors'
libraries. Results of other seeds in the file are kept. Usage:

    python benchmarks/model_shapes.py --out FILE [--seed 1] [--count 40] [--max-autotune]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/ops")]

import torch  # noqa: E402
from interleaved import judged  # noqa: E402
from matmul_tasks import facts  # noqa: E402
from operator_calls import results_of  # noqa: E402
from operator_cases import call_of  # noqa: E402
from ops_workloads import error_of  # noqa: E402
from public_models import draw  # noqa: E402

from search_spaces import registry  # noqa: E402
from search_spaces.records import Workload  # noqa: E402
from tuner import ops  # noqa: E402

PRODUCTS = ("matmul", "linear", "attention", "grouped_attention", "convolution")
#: Launches of each baseline before the fastest is judged, pairs, and seconds of load before them.
_TRIES, _PAIRS, _LOAD_S = 7, 48, 0.1


def quick_us(call: Callable[[], Any]) -> float:
    """Median time of a few launches."""
    times = []
    for _ in range(_TRIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def judge(name: str, dims: Mapping[str, Any]) -> dict[str, Any]:
    kernel, workload = registry.load(name), Workload.from_mapping(dims)
    tensors = dict(kernel.make_inputs(workload, 7, "cuda"))
    call = call_of(name, workload, tensors)
    assert call is not None
    names = sorted(workload.key.split())
    began = time.perf_counter()
    outputs = results_of(call())
    torch.cuda.synchronize()
    found: dict[str, Any] = {"kernel": name, "workload": dict(dims)}
    found["first_call_s"] = round(time.perf_counter() - began, 3)
    exact, bound = kernel.reference(workload, tensors), kernel.tolerance(workload).relative
    found["error"] = max(
        error_of(out.view(each.shape), each)
        for out, each in zip(outputs, exact.values(), strict=True)
    )
    found["correct"] = found["error"] <= bound
    del exact, outputs
    used = next(use for use in ops.report() if sorted(use.workload.split()) == names)
    found |= {"runs": used.implementation, "why": used.reason, "config": used.config}
    calls, found["us"] = {}, {}
    for baseline, function in kernel.baselines(workload).items():
        try:
            function(tensors)
            calls[baseline] = lambda function=function: function(tensors)
            found["us"][baseline] = quick_us(calls[baseline])
        except Exception as error:
            found["us"][baseline] = f"{type(error).__name__}: {error}"[:120]
    fastest = min(calls, key=lambda each: found["us"][each])
    load_s = _LOAD_S if kernel.cost(workload).flops >= 1e11 else 0.0
    ratio = judged(calls[fastest], call, lambda: None, _PAIRS, load_s=load_s)
    found |= {"fastest": fastest, "over": ratio["speedup"], "interval": ratio["interval"]}
    return found | {"ops_us": ratio["tuned_us"]}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    families: dict[str, list[float]] = {}
    for row in rows:
        if "over" in row:
            families.setdefault(row["kernel"], []).append(row["over"])
    shares = [share for each in families.values() for share in each]
    return {
        "workloads": len(rows),
        "faults": sum("fault" in row for row in rows),
        "wrong": sum(not row.get("correct", True) for row in rows),
        "at least 0.97": round(sum(each >= 0.97 for each in shares) / len(shares), 4),
        "least": round(min(shares), 3),
        "geometric means": {
            kernel: round(math.exp(statistics.fmean(map(math.log, each))), 3)
            for kernel, each in sorted(families.items())
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--max-autotune", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which none begins")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.is_file() else {"rows": []}
    rows = [row for row in known["rows"] if row["seed"] != options.seed]
    torch.backends.cudnn.allow_tf32 = False  # as in campaigns
    began = time.monotonic()
    for name, dims in draw(options.seed, options.count):
        if time.monotonic() - began > options.seconds:
            break
        torch._inductor.config.max_autotune = options.max_autotune and name in PRODUCTS
        try:
            found = judge(name, dims)
        except Exception as error:
            found = {"kernel": name, "workload": dict(dims)}
            found["fault"] = f"{type(error).__name__}: {error}"[:500]
        rows.append({"seed": options.seed, **found})
        print(json.dumps(found, default=str), flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        result = {"toolchain": facts(), "summary": summarise(rows), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1, default=str) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
