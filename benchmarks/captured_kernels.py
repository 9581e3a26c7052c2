"""Kernels of PyPI packages tuned from a call: the winner against the library's own choice.

For each case of captured_cases.py, the script runs the lines that a user types, compares the
winner with the config that the library chose in a loop of its own (interleaved.py), applies the
table, and compares the results of the library's function with and without it. Usage:

    python benchmarks/captured_kernels.py --out OUT [--only NAME ...] [--budget auto] [--pairs 208]

Writes OUT/captured_kernels.json after each kernel. `--earlier FILE` takes the other kernels from a
file of an earlier run and compares their winners again. `own_twice` is the library's config
against itself: the noise of the comparison. Packages may lie anywhere on Python's import
path. Without a GPU the kernels are captured in Triton's interpreter, and nothing is timed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from captured_cases import CASES, Case  # noqa: E402
from interleaved import judged  # noqa: E402
from matmul_tasks import facts  # noqa: E402

import tuner  # noqa: E402

GPU = torch.cuda.is_available()
#: The largest ratio of the winner's time over the library's that passes.
BOUND = 1.005
#: Options of a config that sets none.
UNSET = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
#: Rows of a tensor where kernels run in the interpreter.
FEW_ROWS = 128


def typed_lines(case: Case) -> str:
    """What a user types for a kernel."""
    declaration = f".declare({case.options})" if case.options else ""
    return (
        "with tuner.capture() as calls:\n"
        f"    {case.call}\n"
        f'result = session.tune(calls["{case.kernel}"][0]{declaration}, budget=budget)\n'
        "result.export(tables)\n"
    )


def captured(case: Case) -> tuple[dict[str, Any], Any]:
    """The variables after the capture, and the calls of the kernel."""
    scope: dict[str, Any] = {"torch": torch, "tuner": tuner}
    scope |= {"device": "cuda" if GPU else "cpu", "rows": case.rows if GPU else FEW_ROWS}
    exec(case.given, scope)
    with tuner.capture() as calls:
        exec(case.call, scope)
    return scope, calls


def declare_case(case: Case, calls: Any) -> tuple[Any, Any]:
    """The kernel of the first call, and its workload."""
    kernel = calls[case.kernel][0].declare(**eval(f"dict({case.options})"))
    return kernel, kernel.workloads()[0]


def facts_before(case: Case) -> dict[str, Any]:
    """What the record says, or the one line why the kernel cannot be tuned."""
    _, calls = captured(case)
    if case.kernel not in calls.names:
        return {"problem": f"not launched; captured: {', '.join(calls.names)}"}
    record = calls[case.kernel][0].calls[0]
    facts: dict[str, Any] = {"place": record.place, "grid": list(record.grid.sizes)}
    if record.problem:
        return facts | {"problem": record.problem}
    kernel, workload = declare_case(case, calls)
    call = kernel.call(workload)
    written = {call.buffers[w.buffer].name: [w.updated, w.partial] for w in call.written}
    return facts | {
        "written": written,
        "configs": call.configs,
        "tolerance": kernel.tolerance(workload).relative,
        "space": sum(len(p.values()) for p in kernel.space(workload).parameters),
    }


def tuned(case: Case, session: Any, budget: Any, pairs: int, tables: Path) -> dict[str, Any]:
    """Run what the user types, and judge what came of it."""
    scope, _ = captured(case)  # the library's autotuner, if any, has tuned then
    plain = results_of(case, scope)
    scope |= {"session": session, "budget": budget, "tables": tables}
    started = time.monotonic()
    exec(typed_lines(case), scope)
    result = scope["result"]
    facts: dict[str, Any] = {
        "lines": typed_lines(case).count("\n"),
        "tune_s": time.monotonic() - started,
        "stage_s": dict(result.stage_s),
        "device": dict(result.device_facts),
        "winner": None if result.winner is None else dict(result.winner),
        "ships": None if result.ships is None else dict(result.ships),
        "verdict": result.verdict,
        "reason": result.reason,
        "kept_because": result.kept_because,
        "note": result.note,
        "speedup_by_farm": result.speedup,
    }
    frame = result.trials
    facts["statuses"] = frame["status"].astype(str).value_counts().to_dict()
    facts["messages"] = sorted({m.splitlines()[0] for m in frame["message"] if m})[:6]
    if result.ships is None:
        return facts
    facts |= side_by_side(case, scope["calls"], result.ships, pairs)
    with tuner.applied(tables) as used:
        from_table = results_of(case, scope)
        counts = [(use.state, use.hits, use.misses, use.note) for use in used.kernels]
    facts["applied"] = counts
    facts["largest_difference"] = max(map(difference, plain, from_table), default=0.0)
    return facts


def side_by_side(case: Case, calls: Any, ships: Any, pairs: int) -> dict[str, Any]:
    """The config that the library chose and the one that ships, on the same tensors."""
    kernel, workload = declare_case(case, calls)
    return compared(kernel, workload, ships, pairs)


def compared(kernel: Any, workload: Any, ships: Any, pairs: int) -> dict[str, Any]:
    default = kernel.call(workload).default
    same = {**UNSET, **default} == {**UNSET, **ships}
    tensors = tensors_of(kernel, workload)
    (prepare, own), (_, again), (_, other) = (
        two_parts(kernel.launches(workload, config, tensors))
        for config in (default, default, ships)
    )
    found = {"default": dict(default), "same_config": same, **judged(own, other, prepare, pairs)}
    found["own_twice"] = judged(own, again, prepare, pairs)
    if workload_has_old_values(kernel, workload, tensors):
        # As the farm times it: with the launch that writes the old values of in-place outputs.
        both = [lambda last=last: (prepare(), last()) for last in (own, other)]
        found["with_old_values"] = judged(*both, lambda: None, pairs)
    return found | {"never_slower": found["interval"][1] >= 1 / BOUND}


def tensors_of(kernel: Any, workload: Any) -> dict[str, Any]:
    from search_spaces.shape_tensor import torch_dtype

    tensors = dict(kernel.make_inputs(workload, 7, "cuda"))
    for name, spec in kernel.outputs(workload).items():
        tensors[name] = torch.zeros(spec.shape, dtype=torch_dtype(spec.dtype), device="cuda")
    return tensors


def workload_has_old_values(kernel: Any, workload: Any, tensors: Any) -> bool:
    return len(kernel.launches(workload, kernel.call(workload).default, tensors)) > 1


def two_parts(launches: Any) -> tuple[Any, Any]:
    """What a launch needs before it, and the launch."""
    *before, last = launches

    def prepare() -> None:
        for each in before:
            each.fn[each.grid](*each.args, **each.kwargs)

    return prepare, lambda: last.fn[last.grid](*last.args, **last.kwargs)


def compared_again(case: Case, ships: Any, pairs: int) -> dict[str, Any]:
    """The winner of an earlier run against what the library chooses now."""
    _, calls = captured(case)
    return side_by_side(case, calls, ships, pairs)


def results_of(case: Case, scope: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the library's function returns."""
    own = dict(scope)
    exec(case.call, own)
    name = case.call.partition(" =")[0]
    found = own[name] if isinstance(own[name], tuple | list) else [own[name]]
    return [each for each in found if isinstance(each, torch.Tensor)]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    left, right = one.detach().double(), other.detach().double()
    return float((left - right).norm() / (left.norm() + 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--budget", type=json.loads, default='"auto"', help="JSON")
    parser.add_argument("--pairs", type=int, default=208)
    parser.add_argument("--earlier", type=Path, help="a captured_kernels.json")
    parser.add_argument("--capture", action="store_true", help="capture only")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "toolchain": facts(),
        "budget": options.budget,
        "kernels": {},
    }
    session = tuner.session() if GPU and not options.capture else None

    def keep(name: str, facts: dict[str, Any]) -> None:
        result["kernels"][name] = facts
        print(name, json.dumps(facts, default=str), flush=True)
        result["summary"] = summary(result["kernels"])
        text = json.dumps(result, indent=1, sort_keys=True, default=str)
        (out / "captured_kernels.json").write_text(text + "\n")

    for name in options.only:
        keep(name, one(CASES[name], session, options, out / "tables" / name))
    if session is not None:
        session.close()
    if options.earlier is not None:
        earlier = json.loads(options.earlier.read_text())["kernels"]
        for name in sorted(earlier.keys() - set(options.only)):
            keep(name, earlier[name] | again(CASES[name], earlier[name], options.pairs))
    print(json.dumps(result["summary"]))


def summary(kernels: dict[str, Any]) -> dict[str, Any]:
    """How many were compared, the slowest of them, and what the library's config differs from
    itself by at most."""
    done = {name: facts for name, facts in kernels.items() if "speedup" in facts}
    twice = [facts["own_twice"]["speedup"] for facts in done.values() if "own_twice" in facts]
    least = min(done, key=lambda name: done[name]["speedup"], default=None)
    return {
        "kernels": len(done),
        "packages": len({facts["package"] for facts in done.values()}),
        "surely_slower": [name for name, facts in done.items() if not facts["never_slower"]],
        "least": None if least is None else [least, done[least]["speedup"]],
        "own_twice": [min(twice, default=None), max(twice, default=None)],
        "not_tuned": {name: facts["problem"] for name, facts in kernels.items()
                      if "problem" in facts},
    }  # fmt: skip


def again(case: Case, earlier: dict[str, Any], pairs: int) -> dict[str, Any]:
    """The comparison of one kernel of an earlier run; a fault loses nothing of the others."""
    try:
        return compared_again(case, earlier["ships"], pairs) if "ships" in earlier else {}
    except Exception as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {error}"[:2000]}


def one(case: Case, session: Any, options: argparse.Namespace, tables: Path) -> dict[str, Any]:
    """The facts of one kernel; a fault of one loses nothing of the others."""
    facts: dict[str, Any] = {"kernel": case.kernel}
    try:
        facts["package"] = f"{case.package} {importlib.metadata.version(case.package)}"
        facts |= facts_before(case)
        if session is not None and "problem" not in facts:
            facts |= tuned(case, session, options.budget, options.pairs, tables)
    except tuner.TunerError as problem:
        facts["problem"] = problem.message
    except Exception as error:
        traceback.print_exc()
        facts["problem"] = f"{type(error).__name__}: {error}"[:2000]
    return facts


if __name__ == "__main__":
    main()
