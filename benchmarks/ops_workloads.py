"""Every workload of the shipped tables through tuner.ops: right, and as fast as the fastest.

The tables are those of the device, and of another one for kernels that the device has none of. For
each entry, the operator is called on random inputs, its results are compared with the kernel's
reference, and its time is compared, interleaved and apart from the product (interleaved.py), with
that of the baseline that the table found fastest, `compile` left out: its compilation takes seconds
each; its ratio is the table's. The host time of a call on small tensors is compared with
torch's own function in loops. Usage:

    python benchmarks/ops_workloads.py --out OUT [--pairs 48] [--only KERNEL ...] [--host]

Writes OUT/ops_workloads.json; with --host only the host times, into OUT/ops_host_times.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/ops")]

import torch  # noqa: E402
from interleaved import judged  # noqa: E402
from matmul_tasks import facts  # noqa: E402
from operator_calls import results_of  # noqa: E402
from operator_cases import KERNELS, call_of  # noqa: E402

from search_spaces import registry  # noqa: E402
from search_spaces.baselines import is_compiled  # noqa: E402
from search_spaces.records import Workload  # noqa: E402
from tuner import ops, runtime  # noqa: E402
from tuner.ops.operator import Operator  # noqa: E402

#: Products of this many operations run into the power limit, which loads of this length reach.
_HEAVY_FLOPS, _LOAD_S = 1e11, 0.2
#: Calls of one loop for the host time, and loops.
_CALLS, _LOOPS = 500, 15


def tables_here() -> list[runtime.Table]:
    """The shipped tables that this device uses, in order of their kernels."""
    files = sorted((ROOT / "tuner/tables").glob("*.json"))
    tables = [runtime.read(file) for file in files]
    own = [each for each in tables if each.device.name == torch.cuda.get_device_name()]
    known = {each.kernel for each in own}
    others = {each.kernel: each for each in tables if each.kernel not in known}
    return sorted([*own, *others.values()], key=lambda table: table.kernel)


def error_of(out: torch.Tensor, exact: torch.Tensor) -> float:
    exact = exact.double()
    return float((out.double() - exact).norm() / (exact.norm() + 1e-300))


def judge(kernel: Any, entry: Any, pairs: int) -> dict[str, Any] | None:
    workload = Workload.from_mapping(entry.key)
    tensors = dict(kernel.make_inputs(workload, 7, "cuda"))
    call = call_of(kernel.name, workload, tensors)
    if call is None:
        return None
    found: dict[str, Any] = {"kernel": kernel.name, "workload": dict(entry.key)}
    outputs = results_of(call())
    exact = kernel.reference(workload, tensors)
    bound = kernel.tolerance(workload).relative
    errors = [
        error_of(out.view(each.shape), each)
        for out, each in zip(outputs, exact.values(), strict=True)
    ]
    found |= {"errors": errors, "correct": max(errors) <= bound}
    del exact, outputs
    (used,) = [use for use in ops.report() if use.workload == workload.key][-1:] or [None]
    found["runs"] = used.implementation if used else "eager"
    found["table"] = {"implementation": entry.implementation, **entry.baselines}
    others = {name: r for name, r in entry.baselines.items() if not is_compiled(name)}
    if others:
        fastest = min(others, key=others.__getitem__)
        baseline = kernel.baselines(workload)[fastest]
        load_s = _LOAD_S if kernel.cost(workload).flops >= _HEAVY_FLOPS else 0.0
        ratio = judged(lambda: baseline(tensors), call, lambda: None, pairs, load_s=load_s)
        found |= {"fastest": fastest, "over": ratio["speedup"], "interval": ratio["interval"]}
        found |= {"us": ratio["tuned_us"]}
    return found


def host_us(call: Any) -> float:
    """Median host time of a call, in loops whose work the GPU keeps up with."""
    for _ in range(50):
        call()
    times = []
    for _ in range(_LOOPS):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter_ns() - began) / 1e3 / _CALLS)
    return statistics.median(times)


def host_times() -> dict[str, list[float]]:
    """Host time of small calls of each kernel's operator, and of torch's function in its place;
    with gradients, of both passes."""
    found = {}
    with ops.prefer_tuned():  # these are far from every entry
        for name in KERNELS:
            kernel = registry.load(name)
            workloads = map(kernel.small_workload, kernel.workloads())
            calls = (call_of(name, each, kernel.make_inputs(each, 7, "cuda")) for each in workloads)
            call = next(each for each in calls if each is not None)
            with torch.no_grad():
                passed = arguments_of(call)
                torchs = partial(torchs_results, passed)
                found[name] = [host_us(call), host_us(torchs)]
            for operator, arguments in passed:
                if operator._differentiated is not None:
                    pair = (operator, operator.reference)
                    times = [host_us(with_gradients(run, arguments)) for run in pair]
                    found[f"{operator.name} with gradients"] = times
    return found


def arguments_of(call: Callable[[], Any]) -> list[tuple[Operator[Any], tuple[Any, ...]]]:
    """The operators that run in a call, each with its arguments."""
    passed, own = [], Operator.__call__

    def list_call(self: Operator[Any], *arguments: Any) -> Any:
        passed.append((self, arguments))
        return own(self, *arguments)

    Operator.__call__ = list_call  # type: ignore[method-assign]
    try:
        call()
    finally:
        Operator.__call__ = own  # type: ignore[method-assign]
    return passed


def torchs_results(passed: Sequence[tuple[Operator[Any], tuple[Any, ...]]]) -> None:
    for operator, arguments in passed:
        operator.reference(*arguments)


def with_gradients(run: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call of both passes, of all floating-point tensors."""
    needed = {
        at: each.detach().requires_grad_()
        for at, each in enumerate(arguments)
        if isinstance(each, torch.Tensor) and each.is_floating_point()
    }
    given = [needed.get(at, each) for at, each in enumerate(arguments)]
    inputs = [*needed.values()]
    grads = [torch.ones_like(each) for each in results_of(run(*given)) if each.requires_grad]

    def call() -> None:
        results = [each for each in results_of(run(*given)) if each.requires_grad]
        torch.autograd.grad(results, inputs, grads, allow_unused=True)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--host", action="store_true", help="only the host times")
    options = parser.parse_args()
    result: dict[str, Any] = {"toolchain": facts(), "pairs": options.pairs, "workloads": []}
    result["host_us"] = host_times()
    for name, (ours, torchs) in result["host_us"].items():
        print(f"{name}: {ours:.2f} us, torch {torchs:.2f} us, {ours - torchs:+.2f} us")
    over = [ours - torchs for ours, torchs in result["host_us"].values()]
    print(f"median difference: {statistics.median(over):+.2f} us")
    result["small"] = [[use.operator, use.implementation, use.reason] for use in ops.report()]
    if options.host:
        (options.out / "ops_host_times.json").write_text(json.dumps(result, indent=1) + "\n")
        return
    torch.backends.cudnn.allow_tf32 = False  # as in campaigns
    for table in tables_here():
        if options.only and table.kernel not in options.only:
            continue
        kernel = registry.load(table.kernel)
        for entry in table.entries:
            before = torch.cuda.memory_allocated()
            try:
                found = judge(kernel, entry, options.pairs)
            except Exception as error:
                found = {"kernel": table.kernel, "workload": dict(entry.key)}
                found["fault"] = f"{type(error).__name__}: {error}"[:500]
            gc.collect()
            torch.cuda.empty_cache()
            if found is not None:
                found["kept_mib"] = (torch.cuda.memory_allocated() - before) / 2**20
                result["workloads"].append(found)
                if "fault" in found or not found["correct"] or found.get("over", 1) < 0.98:
                    print(json.dumps(found), flush=True)
        result["summary"] = summarise(result["workloads"])
        (options.out / "ops_workloads.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"]))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    timed = [row for row in rows if "over" in row]
    shares = [row["over"] for row in timed]
    return {
        "workloads": len(rows),
        "faults": sum("fault" in row for row in rows),
        "wrong": sum(not row.get("correct", True) for row in rows),
        "kept MiB": round(sum(row["kept_mib"] for row in rows), 1),
        "at least 0.99 of the fastest": sum(share >= 0.99 for share in shares) / len(shares),
        "least": min(shares),
        "geometric mean over the fastest baseline": math.exp(
            statistics.fmean(math.log(share) for share in shares)
        ),
    }


if __name__ == "__main__":
    main()
