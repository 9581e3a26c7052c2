"""What compiles in a fresh process that has a bundle: all operators, captured kernels, a model.

Three steps, each a process of its own. `record` runs everything, with TUNER_RECORD, and captures
the kernels of packages; their libraries' choices become tables, so that nothing is tuned again.
`tuner bundle` builds for this card's target without seeing the card. `run` has a new home folder,
empty caches, no C compiler and a bundle that is read only, and runs everything twice. Usage:

    python benchmarks/bundles.py --out OUT [--cases FILE.py] [--parts ops packages llama] [--most 4]

FILE.py: CASES, whose items have under `fn` what makes `call` and, run before it, `prepare`.
Writes OUT/bundles.json: build time, size, compilations, tunings, seconds of both passes.
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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests/ops")]
PARTS = ("ops", "packages", "llama")
Subject = tuple[str, Callable[[], Any], Callable[[], Any]]


def subjects(parts: list[str], cases: Path | None, most: int) -> Iterator[Subject]:
    """The name, the call and what is run before it."""
    import torch

    if "ops" in parts:
        from operator_cases import call_of
        from ops_workloads import tables_here

        from search_spaces import registry
        from search_spaces.records import Workload

        for table in tables_here():
            kernel = registry.load(table.kernel)
            for entry in table.entries[:: max(1, len(table.entries) // most)]:
                workload = Workload.from_mapping(entry.key)
                call = call_of(kernel.name, workload, dict(kernel.make_inputs(workload, 7, "cuda")))
                if call is not None:
                    yield f"ops {kernel.name} {workload.key}", call, int
    if "packages" in parts and cases is not None:
        spec = importlib.util.spec_from_file_location("package_cases", cases)
        module = importlib.util.module_from_spec(spec)
        sys.modules["package_cases"] = module
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

        model = ops.patch(make(SUBJECTS["llama"]))
        for sizes in ((1, 4096), (4, 1000), (32, 1)):
            inputs = make_inputs(model, sizes)
            yield f"llama {sizes}", torch.no_grad()(lambda i=inputs: result_of(model(**i))), int


def digest(found: Any) -> str:
    import torch

    parts = found if isinstance(found, tuple | list) else [found]
    sums = [hashlib.sha256(each.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy())
            .hexdigest()[:12] for each in parts if isinstance(each, torch.Tensor)]  # fmt: skip
    return " ".join(sums)


def count(owner: Any, name: str, counts: dict[str, int], what: str) -> None:
    own = getattr(owner, name)

    def counted(*args: Any, **named: Any) -> Any:
        counts[what] += 1
        return own(*args, **named)

    setattr(owner, name, counted)


def run_all(options: argparse.Namespace) -> None:
    """Run everything, in the first step with a record; writes facts of each subject."""
    import torch
    import triton

    import tuner
    from workers.compiling import count_compilations

    counts = {"tunings": 0, "host": 0}
    count(triton.runtime.autotuner.Autotuner, "_bench", counts, "tunings")
    count(triton.runtime.build, "_build", counts, "host")
    torch.zeros(1, device="cuda")
    found: dict[str, Any] = {}
    for name, call, prepare in subjects(options.parts, options.cases, options.most):
        recorded = options.step == "record" and name.startswith("packages")
        facts: dict[str, Any] = {}
        before = dict(counts)
        try:
            with count_compilations(import_inductor=False) as compiled:
                for which in ("first_s", "warm_s"):
                    prepare()
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    with (
                        tuner.capture()
                        if recorded and which == "warm_s"
                        else nullcontext() as calls
                    ):
                        result = call()
                    torch.cuda.synchronize()
                    facts[which] = time.perf_counter() - began
            facts |= {"digest": digest(result), "compiled": compiled.names}
            facts |= {what: counts[what] - before[what] for what in counts}
            if recorded:
                facts["left_out"] = keep(calls, options.out, name.split()[1])
        except Exception as error:
            facts["problem"] = f"{type(error).__name__}: {error}"[:500]
        found[name] = facts
        print(name, facts.get("compiled"), facts.get("problem", ""), flush=True)
        call = prepare = result = calls = None
        gc.collect()
        torch.cuda.empty_cache()
    (options.out / f"{options.step}.json").write_text(json.dumps(found, indent=1))


def keep(calls: Any, out: Path, name: str) -> list[str]:
    """Save captured calls, and tables that hold what the library's autotuners chose."""
    import triton

    from tuner import TunerError, runtime
    from tuner.tables.results import kernel_facts
    from tuner.tables.text import text_of

    calls.save(out / "calls" / f"{name}.json")
    problems = []
    for captured in calls:
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
            (out / "tables" / f"{name}-{len(os.listdir(out / 'tables'))}.json").write_text(
                text_of(table)
            )
    return problems


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
    fresh = {**os.environ, "HOME": f"{options.out}/home", "PATH": "/nonexistent",
             "TUNER_BUNDLE": f"{options.out}/bundle"}  # fmt: skip
    fresh = {name: fresh[name] for name in fresh if not name.startswith("TRITON_")}
    subprocess.run([*own, "run"], env=fresh, check=True)
    facts |= summary(*(json.loads((options.out / f"{step}.json").read_text())
                       for step in ("record", "run")))  # fmt: skip
    (options.out / "bundles.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Build the bundle without the card, and make it read only."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    sources = [options.out / "tables", options.out / "record", options.out / "calls"]
    given = [str(each) for each in sources if any(each.iterdir())]
    command = ["-m", "tuner", "bundle", *given, *(["ops"] if "ops" in options.parts else [])]
    command += ["--for", f"cuda:{major}{minor}", "-o", f"{options.out}/bundle", "--format", "json"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    subprocess.run(["chmod", "-R", "a-w", f"{options.out}/bundle"], check=True)
    return {"build_s": time.perf_counter() - began, **json.loads(done.stdout)}


def summary(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Both passes of the fresh process, by part; and what was compiled or differs."""
    both = {n: (before[n], after[n]) for n in after if "problem" not in {**before[n], **after[n]}}
    found: dict[str, Any] = {"problems": {
        n: after[n].get("problem") or before[n].get("problem") for n in after if n not in both
    }}  # fmt: skip
    for part in PARTS:
        own = {n: pair for n, pair in both.items() if n.startswith(part)}
        found[part] = {
            "subjects": len(own),
            "compilations": sum(len(run["compiled"]) for _, run in own.values()),
            "compiled": {n: run["compiled"] for n, (_, run) in own.items() if run["compiled"]},
            "tunings": sum(run["tunings"] for _, run in own.values()),
            "host_compilations": sum(run["host"] for _, run in own.values()),
            "same_bits": sum(one["digest"] == run["digest"] for one, run in own.values()),
            "without_bundle_first_s": sum(one["first_s"] for one, _ in own.values()),
            "first_s": sum(run["first_s"] for _, run in own.values()),
            "warm_s": sum(run["warm_s"] for _, run in own.values()),
        }
    return found


if __name__ == "__main__":
    main()
