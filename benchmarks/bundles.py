"""What compiles in a fresh process that has a bundle: all operators, kernels of packages, a model.

Three steps, each a process of its own. `record` runs everything, with TUNER_RECORD, and captures
the kernels of packages; what their autotuners chose becomes tables. `tuner bundle` builds for this
card's target without seeing the card. `run` has a new home folder, empty caches, no C compiler and
a bundle that is read only, and runs everything twice. Usage:

    python benchmarks/bundles.py --out OUT [--cases FILE.py] [--parts ops packages llama] [--most 4]

FILE.py: CASES, whose items have under `fn` what makes `call` and, run before it, `prepare`.
Writes OUT/bundles.json: build time, size and, by part, compilations, tunings, seconds of a pass.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/ops")]
PARTS = ("ops", "packages", "llama")


def subjects(parts: list[str], cases: Path | None, most: int) -> Iterator[tuple[str, Any, Any]]:
    """The name, the call and what is run before it."""
    import torch

    if "ops" in parts:
        from operator_cases import call_of
        from ops_workloads import tables_here

        from search_spaces import registry
        from search_spaces.records import Workload

        for table in tables_here():
            kernel = registry.load(table.kernel)
            some = table.entries[:: max(1, len(table.entries) // most)]
            for workload in (Workload.from_mapping(entry.key) for entry in some):
                call = call_of(kernel.name, workload, dict(kernel.make_inputs(workload, 7, "cuda")))
                if call is not None:
                    yield f"ops {kernel.name} {workload.key}", call, int
    if "packages" in parts and cases is not None:
        spec = importlib.util.spec_from_file_location("package_cases", cases)
        sys.modules["package_cases"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, case in module.CASES.items():
            torch.manual_seed(7)
            try:
                made = case["fn"]()
            except Exception as error:
                print(f"{name} is left out: {error!r:.200}", file=sys.stderr)
                continue
            yield f"packages {name}", made["call"], made.get("prepare") or int
    if "llama" in parts:
        from model_steps import SUBJECTS, make, make_inputs, result_of

        from tuner import ops

        model = make(SUBJECTS["llama"])
        ops.patch(model)
        for sizes in SUBJECTS["llama"].jobs.values():
            inputs = make_inputs(model, sizes)
            yield f"llama {sizes}", torch.no_grad()(lambda i=inputs: result_of(model(**i))), int


def run_all(options: argparse.Namespace) -> None:
    """Run everything twice, and write what happened by subject."""
    import torch
    import triton

    import tuner
    from workers.compiling import count_compilations

    counts = {"_bench": 0, "_build": 0}
    for owner, name in ((triton.runtime.autotuner.Autotuner, "_bench"),
                        (triton.runtime.build, "_build")):  # fmt: skip
        count(owner, name, counts)
    torch.zeros(1, device="cuda")
    found: dict[str, Any] = {}
    for name, call, prepare in subjects(options.parts, options.cases, options.most):
        captures = options.step == "record" and name.startswith("packages")
        facts = found[name] = dict.fromkeys(counts, 0)
        before = dict(counts)
        try:
            with count_compilations(import_inductor=False) as compiled:
                for which in ("first_s", "warm_s"):
                    prepare()
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    with tuner.capture() if captures and which == "warm_s" else nullcontext() as c:
                        result = call()
                    torch.cuda.synchronize()
                    facts[which] = time.perf_counter() - began
            facts |= {each: counts[each] - before[each] for each in counts}
            facts |= {"bits": digest(result), "compiled": compiled.names}
            if captures:
                facts["left_out"] = keep(c, options.out, name.split()[1])
        except Exception as error:
            facts["problem"] = f"{type(error).__name__}: {error}"[:500]
        print(name, facts.get("compiled"), facts.get("problem", ""), flush=True)
        call = prepare = result = c = None
        gc.collect()
        torch.cuda.empty_cache()
    (options.out / f"{options.step}.json").write_text(json.dumps(found, indent=1))


def count(owner: Any, name: str, counts: dict[str, int]) -> None:
    own = getattr(owner, name)

    def call_counted(*args: Any, **named: Any) -> Any:
        counts[name] += 1
        return own(*args, **named)

    setattr(owner, name, call_counted)


def digest(found: Any) -> list[str]:
    import torch

    parts = found if isinstance(found, tuple | list) else [found]
    data = [each.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
            for each in parts if isinstance(each, torch.Tensor)]  # fmt: skip
    return [hashlib.sha256(each).hexdigest()[:12] for each in data]


def keep(calls: Any, out: Path, name: str) -> list[str]:
    """Save captured calls, and tables that hold what the library's autotuners chose."""
    import triton

    from tuner import TunerError, runtime
    from tuner.tables.results import kernel_facts
    from tuner.tables.text import text_of

    calls.save(out / "calls" / f"{name}.json")
    problems = []
    for at, captured in enumerate(calls):
        try:
            kernel = captured.declare()
        except TunerError as error:
            problems.append(error.message)
            continue
        (workload,) = kernel.workloads()
        call = kernel.call(workload)
        if call.configs:
            entry = runtime.Entry(workload.as_dict(), dict(call.default))
            table = runtime.Table(
                kernel.name, "", runtime.current_device(), {"triton": triton.__version__}, (entry,),
                provenance=kernel_facts(kernel), launch_hash="aa",
                kernel_hashes=kernel.kernel_hashes(),
            )  # fmt: skip
            (out / "tables" / f"{name}-{at}.json").write_text(text_of(table))
    return problems


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Build the bundle without the card, and make it read only."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    folders = [options.out / name for name in ("tables", "record", "calls")]
    command = ["-m", "tuner", "bundle", *(f"{each}" for each in folders if any(each.iterdir()))]
    command += ["--for", f"cuda:{major}{minor}", "-o", f"{options.out}/bundle", "--format", "json"]
    hidden, began = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], env=hidden, cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["chmod", "-R", "a-w", f"{options.out}/bundle"], check=True)
    return {"build_s": time.perf_counter() - began, **json.loads(done.stdout)}


def sum_up(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What the fresh process did, by part; what failed in either."""
    missing = {n: ["not run in both"] for n in before.keys() ^ after.keys()}
    after = {n: after[n] for n in after if n in before}
    failed = {n: [each[n].get("problem") for each in (before, after)] for n in after}
    found: dict[str, Any] = {"failed": missing | {n: e for n, e in failed.items() if any(e)}}
    for part in PARTS:
        own = {n: after[n] for n in after if n.startswith(part) and n not in found["failed"]}
        found[part] = {
            "subjects": len(own),
            "compiled": {n: run["compiled"] for n, run in own.items() if run["compiled"]},
            "same_bits": sum(before[n]["bits"] == run["bits"] for n, run in own.items()),
            **{key: sum(run[key] for run in own.values())
               for key in ("_bench", "_build", "first_s", "warm_s")},
            "first_s without": sum(before[n]["first_s"] for n in own),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--most", type=int, default=4, help="workloads of an operator, about")
    parser.add_argument("--step", choices=("record", "run"), help="one step, in this process")
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.step:
        run_all(options)
        return
    for name in ("calls", "tables", "record", "home"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
    own = [sys.executable, __file__, *sys.argv[1:], "--step"]
    record = {"TUNER_RECORD": f"{options.out}/record", "TUNER_RECORD_ALL": "1"}
    subprocess.run([*own, "record"], env={**os.environ, **record}, check=True)
    facts = build(options)
    fresh = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    fresh |= {"HOME": f"{options.out}/home", "PATH": "/nonexistent"}
    fresh |= {"TUNER_BUNDLE": f"{options.out}/bundle"}
    fresh |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # some lie below HOME
    subprocess.run([*own, "run"], env=fresh, check=True)
    both = [json.loads((options.out / f"{step}.json").read_text()) for step in ("record", "run")]
    facts |= sum_up(*both)
    (options.out / "bundles.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
