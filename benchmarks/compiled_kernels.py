"""Kernels inside `torch.compile(fullgraph=True)`: what a table gains there, and in eager mode.

Each case is compiled, captured, tuned, and launched four times: eagerly and compiled, without the
table and with it. The kernel's own time is read from records of the GPU, of launches in turn with
the L2 cache overwritten; what else the function does is not counted. Usage:

    python benchmarks/compiled_kernels.py --out OUT [--cases FILE] [--only NAME ...] [--budget 12]

FILE has `CASES` like captured_cases.py, or mappings: `kernel`, `widen` or `space` for `declare`,
and `fn`, which makes a `call` and what runs before it (`prepare`). Writes OUT/compiled_kernels.json
after each case; none begins after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCHMARKS.parent), str(BENCHMARKS)]

import torch  # noqa: E402
from captured_kernels import difference  # noqa: E402
from matmul_tasks import facts  # noqa: E402
from torch.autograd.profiler import profile  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import tuner  # noqa: E402
from workers.measure.timers.cupti import list_activities, runs_of  # noqa: E402


def parts_of(case: Any) -> tuple[str, dict[str, Any], Any, Any]:
    """The kernel, the options of `declare`, the call, and what runs before it."""
    if not hasattr(case, "given"):
        made = case["fn"]()
        options = {"widen": True} | {n: case[n] for n in ("widen", "space") if n in case}
        return case["kernel"], options, made["call"], made.get("prepare") or (lambda: None)
    scope: dict[str, Any] = {"torch": torch, "device": "cuda", "rows": case.rows}
    exec(case.given, scope)
    call = eval(f"lambda: {case.call.partition(' = ')[2]}", scope)
    return case.kernel, eval(f"dict({case.options})"), call, lambda: None


def run(call: Any, prepare: Any) -> list[torch.Tensor]:
    prepare()
    return [leaf.clone() for leaf in tree_leaves(call()) if isinstance(leaf, torch.Tensor)]


def kernel_times(calls: list[Any], prepare: Any, kernel: str, passes: int = 60) -> list[float]:
    """The median time of a kernel in each of some calls, in microseconds."""
    flush, marker = torch.empty(64 << 20, device="cuda"), torch.zeros(1, device="cuda")
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as session:
        for _ in range(passes + 3):
            for call in calls:
                prepare()
                flush.zero_()
                torch.nextafter(marker, marker)
                call()
                torch.nextafter(marker, marker)
        torch.cuda.synchronize()
    runs = runs_of(list_activities(session), passes * len(calls))
    spent = [sum(a.end_ns - a.start_ns for a in each if kernel in a.name) / 1e3 for each in runs]
    return [statistics.median(spent[at :: len(calls)]) for at in range(len(calls))]


def compare_case(case: Any, session: Any, budget: Any, tables: Path) -> dict[str, Any]:
    kernel, declared, call, prepare = parts_of(case)
    compiled = torch.compile(call, fullgraph=True, dynamic=False)
    plain, _ = run(call, prepare), run(compiled, prepare)  # the library has tuned then
    with tuner.capture() as calls:
        run(compiled, prepare)
    result = session.tune(calls[kernel][0].declare(**declared), budget=budget)
    result.export(tables)
    own = kernel_times([call, compiled], prepare, kernel)
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=False)
    with tuner.applied(tables) as used:
        found = {"difference": max(map(difference, plain, run(compiled, prepare)))}
        found["applied"] = [(u.state, u.hits, u.misses, u.note) for u in used.kernels]
        table = kernel_times([call, compiled], prepare, kernel)
    found |= {"verdict": result.verdict, "ships": result.ships, "farm": result.speedup}
    found |= {"eager_us": [own[0], table[0]], "compiled_us": [own[1], table[1]]}
    eager, inside = own[0] / table[0], own[1] / table[1]
    return found | {"gain_eager": eager, "gain_compiled": inside, "ratio": inside / eager}


def describe_error(error: Exception) -> str:
    """The error without the files of its traceback."""
    lines = f"{type(error).__name__}: {error}"[:1000].splitlines()
    return "\n".join(takewhile(lambda line: 'File "' not in line, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=Path, default=BENCHMARKS / "captured_cases.py")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--budget", type=json.loads, default=12, help="JSON")
    parser.add_argument("--limit", type=float, default=1e9)
    options, began = parser.parse_args(), time.monotonic()
    sys.path.insert(0, str(options.cases.resolve().parent))
    cases, rows = importlib.import_module(options.cases.stem).CASES, {}
    with tuner.session() as session:
        for name in options.only or cases:
            if (start := time.monotonic()) > began + options.limit:
                break
            try:
                row = compare_case(
                    cases[name], session, options.budget, options.out / "tables" / name
                )
            except Exception as error:
                row = {"problem": describe_error(error)}
            rows[name] = {**row, "s": time.monotonic() - start}
            print(name, json.dumps(rows[name], default=str), flush=True)
            text = json.dumps({"toolchain": facts(), "cases": rows}, indent=1, default=str)
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "compiled_kernels.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
